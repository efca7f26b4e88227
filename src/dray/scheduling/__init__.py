"""Which node gives which resources to whom: no process, no thread and no engine is known here."""
