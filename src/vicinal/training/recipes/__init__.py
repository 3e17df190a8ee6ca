"""Recipes: the settings of a run, read from YAML and the command line, and checked."""
