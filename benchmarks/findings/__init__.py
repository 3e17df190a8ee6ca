"""Which claims of the papers hold in fine-tuning: one file per question, methods tuned with equal budget, seeds."""
