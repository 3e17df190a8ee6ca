"""What a GPU takes for everything that Vicinal computes on one: `python -m benchmarks.gpu --out FOLDER`."""
