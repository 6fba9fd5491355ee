"""``torch.save``'s framing for one tensor, written by torch's own zip writer, with the payload streamed in from
outside.

``torch.save`` hands the whole tensor over in one piece, spends most of its time on a CRC-32 that ``torch.load`` never
checks, and ignores what ``write`` returns. Here torch writes everything around the payload, without the CRC, and seeks
over the payload itself (``write_record_metadata``); at that seek the payload is written. Nothing global is switched, so
other threads may call ``torch.save`` meanwhile.

What torch writes around the payload of a plain tensor depends on its geometry alone. So torch writes it once for each
geometry (`frame_of`), and every further tensor of the same geometry gets the same bytes: for a small tensor, running
torch's pickler and zip writer would take longer than all the rest of its save.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from streamxf.dcp.extensions import SaveStream
from streamxf.dcp.tensors.payload import Payload, dense_order, is_plain, untouched
from streamxf.dcp.tensors.staging import Staging
from streamxf.errors import StreamxfError, UnsupportedError
from streamxf.fileio.gather import SMALL
from streamxf.fileio.writer import StreamWriter

PICKLE_PROTOCOL = 2
ALIGNMENT = 64

# A frame takes about 1.5 KiB; a model has far fewer geometries than tensors.
FRAMES_KEPT = 1024


@dataclass(frozen=True, slots=True)
class Frame:
    """What ``torch.save`` writes around a tensor's payload.

    Attributes
    ----------
    prefix, suffix : bytes
        Before the payload and after it. The payload itself is the tensor's memory: its elements in the order of its
        strides, without gaps.
    """

    prefix: bytes
    suffix: bytes


@lru_cache(FRAMES_KEPT)
def frame_of(dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], requires_grad: bool = False) -> Frame:
    """The frame of every plain CPU tensor that has this geometry and fills its storage.

    Plain is a ``torch.Tensor`` itself, not a subclass, without Python attributes, conj or neg bit. Nothing in its frame
    depends on its values, its name or its address.

    Parameters
    ----------
    dtype : torch.dtype
    shape, stride : tuple of int
        In elements. The strides leave no gaps and do not overlap.
    requires_grad : bool

    Raises
    ------
    ValueError
        If the strides have gaps or overlap: such a tensor does not fill its storage.
    UnsupportedError
        If torch saves no tensors of this dtype, or there is no room for one of this size.
    StreamxfError
        If this torch does not write as expected.
    """
    shell = untouched(dtype, shape, stride)
    if dense_order(shell) is None:
        raise ValueError(f"a tensor of shape {tuple(shape)} with strides {tuple(stride)} has gaps or overlaps")
    target = _FrameTarget()
    try:
        _run_zip_writer(shell.requires_grad_(requires_grad), _Records(target))
    except (KeyError, RuntimeError) as error:  # of a dtype without a storage; or torch's own assertions fail
        raise UnsupportedError(f"torch cannot save a tensor of {dtype}: {type(error).__name__}: {error}") from None
    return target.frame(shell.nbytes)


def is_framed(tensor: torch.Tensor) -> bool:
    """Whether `frame_of` has the framing of `tensor`: a plain one, as `frame_of` says, on any device."""
    return (
        is_plain(tensor)
        and not tensor.__dict__
        and not tensor._backward_hooks
        and not any(getattr(tensor, "names", ()))  # gone in newer versions of torch
    )


def save_tensor(tensor: torch.Tensor, target: SaveStream, staging: Staging | None = None) -> int:
    """Write `tensor` to `target` so that ``torch.load`` reads it, and return the number of bytes.

    Parameters
    ----------
    tensor : torch.Tensor
    target : SaveStream
    staging : Staging, optional
        The way to the host for tensors on an accelerator; without it, and from other devices, they go in small pieces,
        each of which is waited for.

    Raises
    ------
    OSError, StreamxfError
        Whatever writing raised, rather than the RuntimeError that torch's writer makes of it.
    """
    payload = Payload.of(tensor)
    shell = payload.shell
    if not is_framed(shell) or shell.storage_offset() or dense_order(shell) is None:
        return _save_through_zip_writer(payload, target)
    frame = frame_of(shell.dtype, shell.shape, shell.stride(), shell.requires_grad)
    size = len(frame.prefix) + shell.nbytes + len(frame.suffix)
    flat = payload.flat() if staging is not None and staging.takes(tensor) else None
    if staging is not None and flat is not None and isinstance(target.stream, StreamWriter):
        target.write_owned(memoryview(frame.prefix))
        target.stream.write_copied(*staging.source(flat))
        target.write_owned(memoryview(frame.suffix))
        return size
    pieces = payload.pieces(shell.untyped_storage())
    if shell.nbytes < SMALL:
        target.write_owned(memoryview(b"".join((frame.prefix, *pieces, frame.suffix))))
        return size
    target.write_owned(memoryview(frame.prefix))
    _write_payload(pieces, target, shell.nbytes)
    target.write_owned(memoryview(frame.suffix))
    return size


def layout_of(
    value: Any, hollow: Callable[[torch.UntypedStorage], bool]
) -> tuple[bytes, list[tuple[int, torch.UntypedStorage]]]:
    """What ``torch.save`` writes for any object, but for the payloads of those storages that are `hollow`; and where
    among these bytes each of the payloads belongs, in order. One without bytes is not among them.

    Raises
    ------
    UnsupportedError
        If it has a tensor of a dtype that torch does not save.
    StreamxfError
        If this torch does not write as expected.
    """
    target = _FrameTarget()
    records = _LayoutRecords(target, hollow)
    try:
        _run_zip_writer(value, records)
    except (KeyError, RuntimeError) as error:
        raise UnsupportedError(f"torch cannot save it: {type(error).__name__}: {error}") from None
    if [size for _, size in target.gaps] != [storage.nbytes() for storage in records.left_out]:
        raise _unexpected_seek()
    places = [at for at, _ in target.gaps]
    return bytes(target.data), list(zip(places, records.left_out, strict=True))


def _save_through_zip_writer(payload: Payload, target: SaveStream) -> int:
    stream = _ZipTarget(target)
    try:
        _run_zip_writer(payload.shell, _Records(stream, payload))
    except RuntimeError:
        if stream.error is not None:
            raise stream.error from None
        raise
    if stream.error is not None:
        raise stream.error
    return stream.tell()


def _run_zip_writer(value: Any, records: _Records) -> None:
    torch.serialization._save(value, records, pickle, PICKLE_PROTOCOL, False)  # type: ignore[no-untyped-call]
    records.write_end()


def _write_payload(pieces: Iterator[memoryview], target: SaveStream, size: int) -> None:
    written = 0
    for piece in pieces:
        target.write_owned(piece)
        written += len(piece)
    if written != size:
        raise StreamxfError(f"the tensor gave {written} bytes where {size} belong; was it changed while it was saved?")


class _Target:
    """The file that torch's zip writer sees: it counts positions and takes no notice of ``flush``."""

    def __init__(self) -> None:
        self._position = 0

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Blocks leave when they are full."""


class _ZipTarget(_Target):
    """Passes on what it gets, keeps the first error, and puts the payload where torch's zip writer seeks."""

    def __init__(self, target: SaveStream) -> None:
        super().__init__()
        self._target = target
        self.pieces: Iterator[memoryview] | None = None
        self.error: BaseException | None = None

    def write(self, data: Any) -> int:
        size = len(data)
        try:
            self._target.write(data)
        except BaseException as error:
            self.error = self.error or error
            raise
        self._position += size
        return size

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            if whence != 1 or self.pieces is None:
                raise _unexpected_seek()
            pieces, self.pieces = self.pieces, None
            _write_payload(pieces, self._target, offset)
        except BaseException as error:
            self.error = self.error or error
            raise
        self._position += offset
        return self._position


class _FrameTarget(_Target):
    """Collects what torch's zip writer writes, and notes where it seeks over payloads, and how far."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()
        self.gaps: list[tuple[int, int]] = []

    def write(self, data: Any) -> int:
        self.data += data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence != 1:
            raise _unexpected_seek()
        self.gaps.append((len(self.data), offset))
        self._position += offset
        return self._position

    def frame(self, payload_size: int) -> Frame:
        # torch does not seek over an empty payload, and then it does not matter where that would stand
        at, size = self.gaps[0] if self.gaps else (len(self.data), 0)
        if len(self.gaps) > 1 or size != payload_size:
            raise _unexpected_seek()
        return Frame(bytes(self.data[:at]), bytes(self.data[at:]))


def _unexpected_seek() -> StreamxfError:
    return StreamxfError("torch's zip writer seeks where it did not before; this torch is not supported yet")


class _Records:
    """What ``torch.serialization._save`` takes for a zip file: passes records on, and storages on as empty places."""

    def __init__(self, stream: _ZipTarget | _FrameTarget, payload: Payload | None = None) -> None:
        file: Any = stream
        self._zip: Any = torch._C.PyTorchFileWriter(file, False, ALIGNMENT)
        self._stream = stream
        self._payload = payload

    def write_record(self, name: str, data: Any, size: int) -> None:
        if not isinstance(data, torch.UntypedStorage):
            self._zip.write_record(name, data, size)
            return
        if self._payload is not None and isinstance(self._stream, _ZipTarget):
            self._stream.pieces = self._payload.pieces(data)
        self._zip.write_record_metadata(name, size)

    def write_end(self) -> None:
        """Let torch write the zip file's directory."""
        self._zip.write_end_of_file()


class _LayoutRecords(_Records):
    """The same for any object: some storages are left out, the others written."""

    def __init__(self, target: _FrameTarget, hollow: Callable[[torch.UntypedStorage], bool]) -> None:
        super().__init__(target)
        self._hollow = hollow
        self.left_out: list[torch.UntypedStorage] = []

    def write_record(self, name: str, data: Any, size: int) -> None:
        if not isinstance(data, torch.UntypedStorage) or not self._hollow(data):
            self._zip.write_record(name, data, size)
            return
        if size:  # torch does not seek over nothing
            self.left_out.append(data)
        self._zip.write_record_metadata(name, size)
