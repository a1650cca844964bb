"""The Arrow Flight gateway: a process beside the hub of a site's host that gives what is in its memory to others."""
