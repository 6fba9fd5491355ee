"""What can still be read of a damaged checkpoint."""
