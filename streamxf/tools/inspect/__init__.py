"""What is in a checkpoint, in figures: totals, a tree of modules, layers side by side, and a page for the browser."""
