"""The documentation and the examples."""
