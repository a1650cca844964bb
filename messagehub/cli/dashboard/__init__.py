"""`messagehub top`: what a hub does now, seen by one observer and shown on a screen or printed once."""
