"""Engines that search the vectors of a local index: faiss, codes, and candidates compared again."""
