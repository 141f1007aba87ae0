"""Copies of whole collections: from a folder to a server, and from one version to the next behind an alias."""
