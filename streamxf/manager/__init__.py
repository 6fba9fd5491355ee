"""When to save, what to keep, and what to resume from: the checkpoints of one training run, in one folder."""
