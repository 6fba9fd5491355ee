"""One self-contained page about a checkpoint: nothing in it is fetched, and nothing of the checkpoint is run."""
