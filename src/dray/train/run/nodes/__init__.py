"""The nodes of a run: requests for them, growth onto more, and departure from leaving nodes."""
