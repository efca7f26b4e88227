"""Messages between a driver and its workers, for the engines whose workers are processes."""
