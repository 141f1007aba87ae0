"""One vector of a live collection: examine it, add it to the points, verify it, remove it."""
