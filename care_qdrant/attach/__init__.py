"""A model's vector beside those of a live collection: examine, attach, follow, verify, detach."""
