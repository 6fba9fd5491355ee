"""File objects over container and engine, and plain files: `streamxf.open`, `encode` and `decode`."""
