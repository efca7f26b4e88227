"""Messages between a driver and its workers: framing, serialization, the protocol of training."""
