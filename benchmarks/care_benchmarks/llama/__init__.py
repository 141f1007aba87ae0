"""How fast and how sound the LlamaIndex integration is, against the stock classes with the same weights."""
