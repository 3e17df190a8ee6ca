"""Thresholds and probabilities of matches, calibrated and saved where they are used."""
