"""Two checkpoints beside each other: which items differ, and how far."""
