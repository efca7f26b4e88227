"""The numbers of rows: the order of an epoch, a position in it, and reading by numbers."""
