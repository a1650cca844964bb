"""Several hosts: the hubs of a site, which share one registry in etcd and forward commands to the one that leads."""
