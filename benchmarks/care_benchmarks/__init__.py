"""CMedTEB-shaped evaluation of retrieval systems through Qdrant and LlamaIndex (``care-bench``)."""
