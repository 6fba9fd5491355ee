"""Files that were altered, or written without checksums."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def flip(file: Path, at: int | None = None, mask: int = 1) -> None:
    """Flip the bits of `mask` in one byte of a file, by default that in its middle."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if at is None else at] ^= mask
    file.write_bytes(data)


@contextmanager
def without_crcs() -> Iterator[None]:
    """torch.save computes none."""
    import torch

    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)
