"""Files that were altered."""

from pathlib import Path


def flip(file: Path, at: int | None = None, mask: int = 1) -> None:
    """Flip the bits of `mask` in one byte of a file, by default that in its middle."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if at is None else at] ^= mask
    file.write_bytes(data)
