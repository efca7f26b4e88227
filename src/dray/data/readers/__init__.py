"""Functions that make datasets from files, databases and custom sources."""
