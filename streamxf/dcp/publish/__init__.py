"""Making a finished save the one that loads."""
