"""Reading once: what several ranks need is read and decoded by one of them, which sends it to the others."""
