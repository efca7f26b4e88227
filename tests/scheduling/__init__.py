"""The resource scheduler."""
