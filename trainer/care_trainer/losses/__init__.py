"""The losses of the stages: objectives over a batch of embeddings, and the modules that embed a batch for them."""
