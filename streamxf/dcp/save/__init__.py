"""One process's part of a save."""
