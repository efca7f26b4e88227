"""The makers of datasets from files, databases and sources of one's own."""
