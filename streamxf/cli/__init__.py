"""``streamxf`` on the terminal: one file for each command."""
