"""A storm over a site: hosts in namespaces, clients that keep a history, and what the history must show."""
