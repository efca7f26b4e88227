"""Training workers in a Ray cluster, forks of an agent on each node or actors; their channel."""
