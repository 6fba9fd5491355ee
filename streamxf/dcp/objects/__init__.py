"""Items that are no tensors: what a pickle may hold, and what it is made of."""
