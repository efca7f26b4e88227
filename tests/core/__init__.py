"""Tasks, actors and objects."""
