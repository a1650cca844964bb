"""Committed tables: immutable parts, named by the manifest of a generation."""
