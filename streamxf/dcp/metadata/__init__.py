"""``.metadata``: its bytes, its manifest, and reading both without believing them."""
