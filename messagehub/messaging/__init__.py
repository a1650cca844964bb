"""Messages between participants: topics, services, correlated streams."""
