"""A finished save made the one that loads, and what it leaves behind removed."""
