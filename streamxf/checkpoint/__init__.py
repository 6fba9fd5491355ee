"""Checkpoints as they lie in storage: read, checked and published, without torch."""
