"""Container version 1: the framing around a stream's encoded blocks; docs/format.md is the norm.

Sans-IO: everything here takes bytes and gives bytes, or says how many it needs next. Nothing reads or writes a file,
decodes a block or knows a key.
"""
