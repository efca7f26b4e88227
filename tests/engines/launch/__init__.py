"""The process engine alone."""
