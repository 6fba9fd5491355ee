"""Where checkpoints lie: local folders and whatever fsspec reads, object stores above all."""
