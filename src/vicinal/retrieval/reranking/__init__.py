"""Re-ranking: rankings are improved by the neighbors that query and gallery images have in common."""
