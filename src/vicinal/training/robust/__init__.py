"""Training with noisy labels: PRISM, co-teaching and forward correction."""
