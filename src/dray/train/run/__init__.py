"""The driver's side of a run: the controller, its decisions and its output."""
