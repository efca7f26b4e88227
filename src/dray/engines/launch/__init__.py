"""Starts of worker processes by fork servers, and removal of anything they leave."""
