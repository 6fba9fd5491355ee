"""`verify` for every format: checkpoints of DCP, files that `streamxf.open` wrote, and other formats ' files."""
