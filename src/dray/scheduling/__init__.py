"""The resource scheduler: it knows no process, no thread and no engine."""
