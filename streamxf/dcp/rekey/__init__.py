"""New keys for a checkpoint, without touching its data."""
