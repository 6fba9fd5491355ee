"""What can be done with a checkpoint besides saving and loading it."""
