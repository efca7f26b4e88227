"""Clusters that a test has for itself."""
