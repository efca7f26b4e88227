"""The Ray engine alone."""
