"""Pictures, and the self-contained HTML page about an evaluation."""
