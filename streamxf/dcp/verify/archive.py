"""What ``torch.save`` wrote, checked without unpickling: the records' CRC-32, and which tensor it is."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

from streamxf.dcp.load.stored import Geometry
from streamxf.dcp.objects.archive import Archive, NotSavedByTorch
from streamxf.dcp.objects.policy import Objects
from streamxf.dcp.tensors.framing import frame_of
from streamxf.errors import MetadataError, StreamxfError

_PAYLOAD = "data/0"


def check_records(file: Any, size: int) -> bool:
    """Compare the CRC-32 of every record in a file of ``torch.save``; whether there are any.

    Torch writes none, but zeros, once it was told ``torch.serialization.set_crc32_options(False)``.

    Raises
    ------
    MetadataError
        If torch did not write the file, or it is damaged. What `file` raises passes through.
    """
    try:
        return Archive.read(file, size).check_crcs(file)
    except NotSavedByTorch as error:
        raise MetadataError(f"the item is not as torch.save wrote it: {error}") from None


def check_tensor(file: Any, size: int, geometry: Geometry, stored: int) -> None:
    """Check that a file of ``torch.save`` holds the tensor that the metadata says.

    The pickle of a plain tensor is compared with the one that torch writes for it. Another one is loaded.

    Raises
    ------
    MetadataError, PolicyError
        If it is another tensor, or none. What `file` raises passes through.
    """
    try:
        archive = Archive.read(file, size)
    except NotSavedByTorch as error:
        raise MetadataError(f"the item holds no tensor that torch.save wrote: {error}") from None
    payload = archive.sizes.get(_PAYLOAD, 0)  # the claim comes from outside, and torch need not see what it cannot be
    if payload == geometry.nbytes and archive.pickled == _pickle_of(geometry):
        return
    file.seek(0)
    geometry.check(Objects().load_tensor(file, size, stored))


def find_payload(file: Any, size: int, geometry: Geometry) -> tuple[int, int] | None:
    """Where the elements of a plain tensor begin in a file of ``torch.save``, and their CRC-32, 0 for none; or None if
    only torch can tell what the file holds. What `file` raises passes through.
    """
    try:
        archive = Archive.read(file, size)
        plain = archive.sizes.get(_PAYLOAD) == geometry.nbytes and archive.pickled == _pickle_of(geometry)
        if plain and archive.native:
            return archive.find(file, _PAYLOAD)
    except NotSavedByTorch:
        """What it is will be found out where it is loaded."""
    return None


@lru_cache(1024)
def _pickle_of(geometry: Geometry) -> bytes | None:
    """What ``torch.save`` pickles for a plain tensor; None where it makes no frame for one."""
    try:
        frame = frame_of(geometry.dtype, geometry.shape, geometry.strides)
    except (RuntimeError, ValueError, StreamxfError):  # not for every dtype
        return None
    hole = Hole(frame.prefix, geometry.nbytes, frame.suffix)
    return Archive.read(hole, hole.size).pickled


class Hole:
    """A file whose payload, of so many bytes between what stands before it and behind it, is never read."""

    def __init__(self, prefix: bytes, payload: int, suffix: bytes) -> None:
        self._prefix = prefix
        self._suffix = suffix
        self._suffix_at = len(prefix) + payload
        self.size = self._suffix_at + len(suffix)
        self._position = 0

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        self._position = position
        return position

    def read(self, size: int) -> bytes:
        at = self._position
        if at >= self._suffix_at:
            data = self._suffix[at - self._suffix_at :][:size]
        elif at < len(self._prefix):
            data = self._prefix[at:][:size]
        else:
            data = bytes(min(size, self._suffix_at - at))
        self._position += len(data)
        return data
