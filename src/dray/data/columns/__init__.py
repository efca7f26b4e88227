"""Calculations on columns for expressions: conditions, projections, kernels."""
