"""One process's side of the conversation with the hub, in the driver and in workers."""
