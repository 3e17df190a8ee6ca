"""Embedding on a Ray cluster."""
