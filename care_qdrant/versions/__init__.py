"""Whole collections: copied, published behind an alias, promoted to a server, or copied to gain a vector."""
