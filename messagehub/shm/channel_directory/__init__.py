"""The directory of channels: who produces what on this host, where it lies, and who may touch it."""
