"""Public names."""
