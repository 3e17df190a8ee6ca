"""Training of context refiners, on embeddings."""
