"""Publish and subscribe."""
