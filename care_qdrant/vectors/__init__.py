"""Work on one vector of a live collection: it is examined, added beside the others, verified, removed."""
