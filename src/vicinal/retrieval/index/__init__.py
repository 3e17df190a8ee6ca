"""Indexes: vectors, with one row of metadata per image, that are kept for many searches."""
