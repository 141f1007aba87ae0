"""A vector beside those of a live collection: looking, adding, keeping up, checking, taking away."""
