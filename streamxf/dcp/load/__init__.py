"""One process's part of a load."""
