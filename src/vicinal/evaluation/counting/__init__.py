"""Counting the rows that rank before the positives of queries: on a CPU or a GPU, tile by tile, over processes."""
