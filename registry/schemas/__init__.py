"""Subjects, versions, settings and deletion of schemas, and what a check is computed from."""
