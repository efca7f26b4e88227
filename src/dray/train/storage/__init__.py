"""Everything that a run keeps on disk."""
