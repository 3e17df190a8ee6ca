"""What the verbs of the command do, callable from Python."""
