"""Two checkpoints compared: which items differ, and how far."""
