"""Schemas are parsed and compared in a process of its own, so that the loop never waits for one."""
