"""The nodes of a run: asked for, grown onto, and left when they are about to be taken away."""
