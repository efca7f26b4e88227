"""The engines: what all do alike, and each alone."""
