"""The loop's side of a site: a hub of several that share one registry leads it, or follows the one that does."""
