"""New keys for a checkpoint or a plain file, without touching its data."""
