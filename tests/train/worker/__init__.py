"""Workers of a run."""
