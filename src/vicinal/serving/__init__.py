"""The HTTP service of an index, its page, and its client."""
