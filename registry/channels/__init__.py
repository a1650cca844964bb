"""Channels and their members: registrations, leases, groups, tables, notices."""
