"""New keys and names for a checkpoint, or new keys for a plain file, without touching its data."""
