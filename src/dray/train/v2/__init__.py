"""Paths that programs for Ray Train's second version import from."""
