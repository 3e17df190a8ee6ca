"""What a command is given as images or embeddings, and the embedded table it becomes."""
