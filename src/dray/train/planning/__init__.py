"""Decisions before a run starts: placement, ranks, and explanations of refusals."""
