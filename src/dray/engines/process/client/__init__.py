"""One process's side of the conversation with the control plane, in the driver and in workers."""
