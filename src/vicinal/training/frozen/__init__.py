"""Training of a head on frozen features, which are computed once."""
