"""Who may connect, what a peer may do, and how much of it."""
