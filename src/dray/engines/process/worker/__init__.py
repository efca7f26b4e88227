"""A worker process: the tasks, or the calls of one actor, that it runs."""
