"""Tensors as bytes: torch's framing, the memory under it, and parts of it."""
