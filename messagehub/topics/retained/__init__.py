"""Topics whose messages the broker stores: publishing, replay, durable positions."""
