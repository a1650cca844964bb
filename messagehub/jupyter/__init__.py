"""Jupyter kernels whose outputs arrive as correlated streams."""
