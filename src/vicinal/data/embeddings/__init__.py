"""Files of embeddings and of what belongs to them: one file, or shards with a manifest."""
