"""What the stages minimise: objectives over a batch of embeddings, and the modules that embed a batch for them."""
