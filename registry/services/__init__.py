"""Addresses, workers and pools; dead letters."""
