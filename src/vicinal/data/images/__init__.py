"""Images: decoding files, and the transforms to the input of a network."""
