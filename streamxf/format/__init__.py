"""The whole format, version 1, and nothing else: bytes in, bytes out. docs/format.md is the norm.

Nothing in here reads or writes a file, decodes a block, or knows a key.
"""
