"""Weights on their way from a trainer to those that use them: published as versions of a run, and followed."""
