"""All files of a run, on a disk or over the network."""
