"""Retained topics, positions of durable subscribers, groups of subscribers."""
