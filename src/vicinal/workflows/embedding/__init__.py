"""Embedding of a table in several processes or as shards of a job."""
