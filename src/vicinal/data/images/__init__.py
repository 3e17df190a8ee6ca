"""Images: decoding files on a CPU or a GPU, and the transforms to the input of a network."""
