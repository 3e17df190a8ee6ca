"""Re-ranking: rankings are improved by the neighbours that query and gallery images have in common."""
