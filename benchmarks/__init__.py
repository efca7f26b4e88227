"""Benchmarks: dray against Ray Train and torchrun on one machine (`python -m benchmarks`)."""
