"""Living with collections that exist, attacked: what ``kill -9`` does to promoting and publishing."""
