"""The sources of rows: memory, files, streams, and rows that were written down."""
