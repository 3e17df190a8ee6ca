"""Helpers that every other package may use: errors, files, console output, seeds, processes and run folders."""
