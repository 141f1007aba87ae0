"""What a collection remembers of its vectors and payloads: pure data and rules, without a call to Qdrant."""
