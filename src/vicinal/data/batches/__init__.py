"""Batches of images: which rows come together, and how they are read."""
