"""Families of accelerators."""
