"""Splits: the classes of train, val and test, held-out images, and the fingerprint of a split."""
