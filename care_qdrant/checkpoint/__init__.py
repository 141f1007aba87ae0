"""The CARE folder: what it says of itself, writing and verifying it, finding it."""
