"""What a place for checkpoints can do."""
