"""Starts of worker processes by fork servers, and the removal of anything that workers leave."""
