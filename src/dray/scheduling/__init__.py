"""The resource scheduler: capacity, placement and queues. It knows no process and no engine."""
