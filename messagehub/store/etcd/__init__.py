"""The registry of a site in etcd: the store's contract over a cluster that several hubs share.

Nothing of it is loaded unless a hub is told to use etcd; `grpcio` and `protobuf` come with messagehub[site].
"""
