"""Messages between a driver and its workers: framing, serialization, and the wire of training."""
