"""From one format or chain to another, block by block: pack, unpack, transcode."""
