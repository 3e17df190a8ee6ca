"""The command `vicinal`: it parses, calls a workflow, and prints."""
