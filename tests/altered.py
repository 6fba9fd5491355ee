"""Bytes and files that were altered, or written without checksums."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typing_extensions import Buffer


def flipped(data: Buffer, at: int | None = None, mask: int = 1) -> bytes:
    """`data` with the bits of `mask` flipped in one byte, by default that in its middle."""
    changed = bytearray(data)
    changed[len(changed) // 2 if at is None else at] ^= mask
    return bytes(changed)


def bit_flips(data: Buffer, begin: int = 0, step: int = 1) -> Iterator[bytes]:
    """`data` with one bit flipped: each, or each `step`th, from the byte `begin` on."""
    for bit in range(8 * begin, 8 * len(memoryview(data)), step):
        yield flipped(data, bit // 8, 1 << bit % 8)


def flip(file: Path, at: int | None = None, mask: int = 1) -> None:
    """Do so in a file."""
    file.write_bytes(flipped(file.read_bytes(), at, mask))


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
