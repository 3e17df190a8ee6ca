"""Counting what ranks before the positives of queries: on a CPU or a GPU, tile by tile, over processes."""
