"""Studies: many training runs of one recipe with other settings, searched (tune) or on a grid (sweep)."""
