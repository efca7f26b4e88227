"""The output of a run: its lines, the screens that they go to, and the logs of ranks."""
