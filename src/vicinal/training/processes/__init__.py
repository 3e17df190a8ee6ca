"""The processes of a run: how they start, share the work and the weights, and end together."""
