"""Reading every byte of a checkpoint, to find out what is damaged."""
