"""Images that a client sends: decoded in processes of their own, embedded in batches, kept and shown small."""
