"""Sessions: init and shutdown."""
