"""Publishing a finished save, and removing what it replaces."""
