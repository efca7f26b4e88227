"""Storages over the network: object stores, requests and transfers, and the lease of a run."""
