"""What is done with whole checkpoints and files, besides saving and loading."""
