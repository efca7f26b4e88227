"""Calculations on columns, as expressions ask for them: conditions, projections, kernels."""
