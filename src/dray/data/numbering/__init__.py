"""Row numbers: the order of an epoch, the position in it, and reading rows by number."""
