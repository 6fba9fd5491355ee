"""What is done with whole checkpoints, whoever wrote them."""
