"""The formats that checkpoints come in: what is in one, and its bytes, without loading it."""
