"""The control plane of a session, in its driver: objects, tasks, actors, workers and resources."""
