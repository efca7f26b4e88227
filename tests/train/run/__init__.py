"""The driver's side of a run."""
