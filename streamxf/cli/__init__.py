"""``streamxf`` on the terminal: one file for each group of commands."""
