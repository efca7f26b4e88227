"""The worker's side of a run."""
