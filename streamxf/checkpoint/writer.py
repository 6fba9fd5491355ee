"""`CheckpointWriter`: a checkpoint of DCP written without DCP, item by item, from one process."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from time import perf_counter
from typing import Any, Self

from streamxf.chain import ChainsLike
from streamxf.checkpoint.datafile import DataFile, SavedFile
from streamxf.checkpoint.increments import Increment, saves_in
from streamxf.checkpoint.memory import SaveMemory, check_memory
from streamxf.checkpoint.pickled import PLANNER_DATA, plain_members
from streamxf.checkpoint.publish import Pin, placed, publish
from streamxf.checkpoint.saving import Save, Stock
from streamxf.checkpoint.sources import Content, Given, Staging, tensor_in, tensor_of
from streamxf.errors import AbortedError, MetadataError, ParameterError, UnsupportedError, located
from streamxf.format.header import Identity, Kind
from streamxf.format.items import Chunk, Item, ObjectItem, Place, TensorItem, check_limits, check_name, is_path
from streamxf.format.limits import DEFAULT_BLOCK_LOG2
from streamxf.format.names import GLOBAL
from streamxf.format.values import Nesting, pack_value
from streamxf.keys import KeysLike, SignerLike
from streamxf.progress import Progress
from streamxf.report import SaveReport
from streamxf.storage.opening import Location, open_storage
from streamxf.stream.encoder import MemorySource
from streamxf.torchsave.writing import saved

_NOWHERE = Place("", 0, 0, ())


class CheckpointWriter:
    """Writes a DCP checkpoint from one process, without DCP, and without torch unless it is given torch's tensors::

        with streamxf.CheckpointWriter("checkpoint", chain="zstd+checksum") as writer:
            writer["layers.0.weight"] = array
            writer["step"] = 100

    It is published in one step when the ``with`` block is left. If that ends by an exception, nothing is published, and
    the written files are removed. `Checkpoint` and ``dcp.load`` read it as if ``dcp.save`` had written it.

    Items are written as they come, and encoded in parallel. Memory holds a few blocks, however large an item is.

    Parameters
    ----------
    path : path, str or Storage
        The checkpoint's folder, which is made if there is none, or its URL.
    chain : Chain, str or codecs, or a mapping, optional
        The codecs, in the order of a save; by default `FloatZip`, and `Encrypt` if there are recipients. A mapping from
        patterns of items' names to chains is as in `FileSystemWriter`.
    recipients : Key, bytes, location or several, optional
        Who may read it, for the word ``encrypt`` in the chain's text form, or for the default chain.
    signer : SigningKey or location, optional
        Signs it, as in `Encrypt`.
    overwrite : bool
        Whether an existing checkpoint is replaced.
    extra : mapping, optional
        Plain data stored with the items: `Checkpoint` has it in its `extra`, torch's readers as attributes of DCP's
        metadata, so names must be Python identifiers.
    stock, block_size, base, memory
        As in `FileSystemWriter`; what is given as bytes, one after the other, is stored in any case.
    progress : Progress, optional
    storage_options : mapping, optional
        fsspec's, for a URL.

    Attributes
    ----------
    save_id : str or None
        Identifies the save, once it is published.
    report : SaveReport or None
        Sizes and times, once it is published.

    Raises FileExistsError if there is a checkpoint, and `overwrite` is False; ParameterError, ChainError,
    KeyMissingError if the arguments cannot work together.
    """

    def __init__(
        self,
        path: Location,
        chain: ChainsLike | None = None,
        *,
        recipients: KeysLike = None,
        signer: SignerLike | None = None,
        overwrite: bool = False,
        extra: Mapping[str, Any] | None = None,
        stock: Stock = "auto",
        block_size: int = 1 << DEFAULT_BLOCK_LOG2,
        base: Location | None = None,
        memory: SaveMemory | None = None,
        progress: Progress | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._memory = check_memory(memory, base)
        self._base = None if base is None else open_storage(base, storage_options)
        self._to = Save.to(path, chain, recipients, signer, overwrite, block_size, storage_options, stock=stock)
        self._extra = _extra(extra or {})
        self._progress = progress
        self._items: dict[str, Item] = {}
        self._use = threading.Lock()
        self._state = "new"
        self.pin: Pin | None = None
        self.rank, self.gather, self.check = 0, _alone, None  # the last: called before the step that publishes
        self.save_id: str | None = None
        self.report: SaveReport | None = None

    def __enter__(self) -> Self:
        if self._state != "new":
            raise ParameterError("a CheckpointWriter writes one checkpoint: make another one")
        self._state, self._pid, self._begin = "failed", os.getpid(), perf_counter()
        self._made: list[Any] = []
        with self._failing_together():
            self._made = self._to.storage.make_folder()
            self._save = self._to.renew()
            self._save.progress = self._progress
            self._save.place = self._save.enter().mount()
            ids, _ = ((), ()) if self._memory is None or self._base is None else saves_in(self._base, GLOBAL)
        known = [each for each in ids if self._memory is not None and self._memory.get(each)]
        (self._coming_id, known), *others = self._agreed((os.urandom(16).hex(), known))
        if self._memory is not None:
            base_id = next((each for each in known if all(each in held for _, held in others)), "")
            self._save.increment = Increment(self._memory, self._save, self._coming_id, base_id, self._base, self.pin)
        self._staging = Staging()
        self._opened = ExitStack()
        self._file: DataFile | None = None
        self._path: str | None = None
        self._state = "open"
        return self

    def __setitem__(self, name: str, value: Any) -> None:
        """Write an item, as `add` does."""
        self.add(name, value)

    def add(
        self,
        name: str,
        value: Any,
        *,
        dtype: Any = None,
        shape: Sequence[int] | None = None,
        copy: bool = True,
        path: Sequence[str | int] | None = None,
        offset: Sequence[int] | None = None,
        of: Sequence[int] | None = None,
    ) -> None:
        """Write an item.

        NumPy arrays and torch tensors are stored as tensors, and so is anything with ``__dlpack__``,
        ``__array_interface__`` or the buffer protocol, such as arrays of JAX or a memoryview. Plain data, including
        bytes, is stored as a value, and anything else as an object, as ``torch.save`` writes it.

        Parameters
        ----------
        name : str
            Each item has a name of its own.
        value
            The item; with `shape` the bytes of its elements, row-major and little-endian: a bytes-like object, an
            iterable of these, each of which may be changed once the next one is requested, or a file that is read from
            its current position to its end.
        dtype : str or dtype, optional
            Of the elements, as torch names it: ``"bfloat16"``. By default that of the array; pass it for arrays whose
            elements stand for others of the same size, such as ``uint8`` for ``float8_e4m3fn``.
        shape : sequence of int, optional
            Of a tensor whose elements come as bytes.
        copy : bool
            Whether the memory of `value` may be changed when this returns. If not, it must stay unchanged until the
            ``with`` block is left, and the call waits less.
        path : sequence of str and int, optional
            The item's place in a nested state dict: keys of dicts and indices of lists; by default the name alone.
        offset, of : sequence of int, optional
            Of a shard, where it begins in its tensor, and that tensor's shape. Its shards are given one by one.

        Raises
        ------
        ParameterError
            If the name or an argument is invalid, or after an error, or outside of the ``with`` block.
        UnsupportedError
            If a checkpoint cannot hold it.
        OSError, StreamxfError
            If it could not be written. After any error nothing is published.
        """
        if not self._use.acquire(blocking=False):
            raise ParameterError("the writer is in use: by another thread, or by the item that is being written")
        try:
            self._check_open()
            self._state = "failed"  # unless all goes well
            with located(item=name if isinstance(name, str) else None):
                where = self._checked(name, path, known=of is None and name in self._items)
                given = tensor_of(value, dtype, self._staging) if shape is None else tensor_in(value, dtype, shape)
                if given is not None:
                    check_limits(name, given.shape)
                    origin = (0,) * len(given.shape) if offset is None else tuple(offset)
                    whole = _whole(given.shape, origin, of)
                    chunk = Chunk(origin, given.shape, _NOWHERE, framed=False)
                    item: Item = TensorItem(name, given.dtype, whole, (chunk,), where, given.properties)
                    item = _joined([self._items[name], item] if name in self._items else [item])
                    part = Identity(b"", Kind.TENSOR, name, given.dtype, origin, given.shape, whole)
                elif dtype is not None or of is not None:
                    raise ParameterError("dtype=, offset= and of= go with arrays and bytes")
                else:
                    packed = pack_value(value) if self._save.extensions.hold_value(name) else None
                    kind = Kind.OBJECT if packed is None else Kind.VALUE
                    data = memoryview(saved(value) if packed is None else packed)
                    given = Given("", (), Content(MemorySource(data), kind))
                    item, part, copy = ObjectItem(name, _NOWHERE, where), Identity(b"", kind, name), False
                self._write(part, given.content, copy and shape is None)
            self._items[name] = item
            self._state = "open"
        finally:
            self._use.release()

    def _checked(self, name: str, path: Sequence[str | int] | None, *, known: bool) -> tuple[str | int, ...]:
        try:
            check_name(name)
        except (MetadataError, UnsupportedError) as error:
            raise ParameterError(f"name={name!r:.80}: {error.message}") from None
        if known:
            raise ParameterError("two items have this name")
        where = (name,) if path is None else tuple(path)
        if not is_path(where):
            raise ParameterError(f"path={path!r:.80}: it is a sequence of keys and indices")
        return where

    def _write(self, part: Identity, content: Content, copy: bool) -> None:
        if self._file is None:
            self._path = path = self._save.file_name(self.rank, 0)
            self._opened.enter_context(located(file=path, doing="storing"))
            self._file = DataFile(self._opened.enter_context(self._save.create(path)), path, self._save)
        source = content.source
        if copy and isinstance(source, MemorySource) and source.size <= 1 << self._to.block_log2:
            content, copy = Content(MemorySource(memoryview(bytes(source.data))), content.kind), False
        if self._progress is not None:
            self._progress.expect(part.size)
        self._file.add(part, lambda: content)
        if copy:
            self._file.settle()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        failed, self._state = self._state == "failed", "over"
        if self._pid != os.getpid():  # the parent goes on
            if error is None:
                raise AbortedError("a child process has no part in a save that its parent began; nothing was changed")
            return
        try:
            if error is not None or failed:
                self._give_up(error)
                self.gather(f"{type(error).__name__}: {error}")
            if error is None and failed:
                raise ParameterError("an item could not be written, so nothing was published")
            if error is None:
                self._publish()
        finally:
            self._save.leave()
            self._file = None
            del self._staging  # and its buffers

    def _publish(self) -> None:
        save, save_id = self._save, self._coming_id
        try:
            files: list[SavedFile] = []
            with self._failing_together():
                if self._file is not None:
                    files.append(self._file.finish())
                    self._opened.close()
                    save.storage.sync()
                _, text = save.refused_objects()
                if text:
                    warnings.warn(text, stacklevel=4)  # an error if the process's filters say so
            every = self._agreed((self._items, files))
            with self._failing_together():
                named: dict[str, list[Item]] = {}
                for name, item in (pair for items, _ in every if self.rank == 0 for pair in items.items()):
                    named.setdefault(name, []).append(item)
                stored = [file for _, each in every for file in each]
                items = placed(map(_joined, named.values()), [file.written for file in stored])
            self._agreed(())
        except BaseException as error:
            self._give_up(error)
            raise
        try:
            with self._failing_together():
                if self.rank == 0:
                    known = [*{each.path: each for file in stored for each in (file.record, *file.kept)}.values()]
                    publish(save, items, known, save_id, check=self.check, extra=Nesting(self._extra).with_order(named))
            self._agreed(())
        except BaseException:
            self._remove_folders()
            raise
        if save.increment is not None:
            save.increment.remember(files)
        report = SaveReport.of(save.meter, perf_counter() - self._begin)
        self.save_id, self.report = save_id, replace(report, stock=save.pickled)

    def _agreed(self, value: Any) -> list[Any]:
        """What all processes that write have; raises AbortedError if one of them failed."""
        found = self.gather(value)
        for rank, text in enumerate(found):
            if isinstance(text, str):
                raise AbortedError(f"rank {rank} failed, so nothing was published: {text}")
        return found

    @contextmanager
    def _failing_together(self) -> Iterator[None]:
        """Tell the others of a failure, who wait in `_agreed`."""
        try:
            yield
        except BaseException as error:
            self.gather(f"{type(error).__name__}: {error}")
            raise

    def _give_up(self, error: BaseException | None) -> None:
        """Remove what was written, after `error`."""
        if self._file is not None:
            self._file.cancel()
        if self._path is not None:  # of a file that may be there
            reason = error or AbortedError("an item could not be written")
            with suppress(Exception):  # what is removed next need not be complete
                self._opened.__exit__(type(reason), reason, reason.__traceback__)
            self._save.discard([self._path], reason)
        self._remove_folders()

    def _remove_folders(self) -> None:
        with suppress(OSError):  # it is not empty, or was removed
            for folder in self._made:
                folder.rmdir()

    def _check_open(self) -> None:
        if self._state == "open" and self._pid != os.getpid():
            raise AbortedError("a child process has no part in a save that its parent began")
        if self._state != "open":
            raise ParameterError(
                {
                    "new": "items are written in the `with` block of a CheckpointWriter",
                    "failed": "an item could not be written, so nothing will be published",
                    "over": "the `with` block was left: make another CheckpointWriter",
                }[self._state]
            )


def _alone(value: Any) -> list[Any]:
    """What `CheckpointWriter.gather` is where no others write: else it gives each what all of them give, by rank."""
    return [value]


def _whole(shape: tuple[int, ...], offset: tuple[int, ...], of: Sequence[int] | None) -> tuple[int, ...]:
    """The shape of the tensor of which this is a shard."""
    whole = shape if of is None else tuple(of)
    fits = len(shape) == len(offset) == len(whole)
    if not fits or not all(0 <= at <= end - size for at, size, end in zip(offset, shape, whole, strict=True)):
        raise ParameterError(f"a shard of {list(shape)} at {list(offset)} is not inside a tensor of {list(whole)}")
    return whole


def _joined(items: Sequence[Item]) -> Item:
    """What was given under one name, here or by several processes, each with shards of its own."""
    made = items[0] if len(items) == 1 else TensorItem.merged(items)
    if len(items) > 1 and (not isinstance(made, TensorItem) or len(made.chunks) < _chunks(items)):
        text = "it was given twice, or its shards are of other dtypes or shapes: give each once, by offset= and of="
        raise ParameterError(text, item=items[0].name)
    assert made is not None
    return made


def _chunks(items: Iterable[Item]) -> int:
    return sum(len(item.chunks) for item in items if isinstance(item, TensorItem))


def _extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    if PLANNER_DATA in extra:
        raise ParameterError(f"extra= has {PLANNER_DATA!r}, which holds the items' paths")
    return plain_members(extra, "extra= has")
