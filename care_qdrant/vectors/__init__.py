"""One vector of a live collection: examined, added beside the others, verified, removed."""
