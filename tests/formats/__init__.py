"""Checkpoints of every format, read."""
