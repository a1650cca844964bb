"""The data side of the facade: producers, consumers and tables over blocks, found with or without a broker."""
