"""`attach`: a chain for other writers and readers that derive from torch's."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from torch.distributed.checkpoint.planner import LoadItemType, ReadItem, SavePlan, WriteItem

from streamxf import torch_private
from streamxf.budget import MAX_EXPANSION
from streamxf.chain import Chain, Chains
from streamxf.checkpoint.access import Access, Require
from streamxf.checkpoint.metadata import Metadata
from streamxf.checkpoint.opening import ItemOpener, ItemPart
from streamxf.checkpoint.saving import Extensions
from streamxf.codec import CodecRegistry
from streamxf.dcp.base import rank_here
from streamxf.dcp.extensions import RawTensor, Registry, StoredValue, framed, is_raw
from streamxf.dcp.plans import REACH, part_of, texts_about
from streamxf.dcp.reader import ChainReaderMixin
from streamxf.dcp.writer import ChainWriterMixin, extensions_of
from streamxf.errors import ChainError, IdentityError, ParameterError, UnsupportedError, located
from streamxf.format.header import Identity, Kind
from streamxf.format.items import ObjectItem, Place
from streamxf.format.limits import WRITER_ID_BYTES
from streamxf.keys import KeysLike
from streamxf.storage.opening import open_storage
from streamxf.storage.reading import FileSlice
from streamxf.stream.reader import Blocks, StreamReader
from streamxf.torch_private import ExtensionRegistry, StorageReaderTransforms, StorageWriterTransforms
from streamxf.wording import some

T = TypeVar("T")


def attach(
    target: T,
    extensions: Sequence[Any] | Chain | Chains | None = None,
    *,
    codecs: ExtensionRegistry | CodecRegistry | None = None,
    keys: KeysLike = None,
    require: Require | None = None,
    weights_only: bool = True,
    safe_globals: Sequence[Any] = (),
    max_expansion: int = MAX_EXPANSION,
) -> T:
    """Give a chain to a writer, or codecs and keys to a reader, of a class derived from torch's; returns that object.

    The writer keeps its own save path; its items are bound to their places but not published with an index, so a
    reader with keys needs ``require="bound"``. docs/guarantees.md has the details.

    Parameters
    ----------
    target : torch ``FileSystemWriter`` or ``FileSystemReader``, or a subclass
        Changed in place.
    extensions : sequence of Codec, or Chain
        For a writer: the codecs, in the order in which data passes them.
    codecs : CodecRegistry, Registry or torch ``ExtensionRegistry``, optional
        For a reader: where codecs and stream extensions are looked up.
    keys, require
        For a reader: as in `streamxf.FileSystemReader`; with keys `require` is ``"bound"``, and never ``"published"``.
    weights_only, safe_globals, max_expansion
        For a reader: as in `streamxf.FileSystemReader`, for non-tensor objects. Tensors are unpickled by the reader
        itself; torch's does that with ``weights_only`` and the classes of ``torch.serialization.add_safe_globals``.

    Raises UnsupportedError if it cannot work with that object; ParameterError, ChainError if the arguments do not fit.
    """
    if isinstance(target, ChainWriterMixin | ChainReaderMixin):
        raise UnsupportedError(
            f"{type(target).__name__} is streamxf's own: pass the chain or the keys to its constructor"
        )
    form = getattr(getattr(target, "serialization_format", None), "value", "torch_save")
    if form == "safetensors" or any("HuggingFace" in cls.__name__ for cls in type(target).__mro__):
        raise UnsupportedError(
            f"{type(target).__name__} stores safetensors files, which torch writes past all extensions; a chain "
            "would corrupt them"
        )
    transforms = getattr(target, "transforms", None)
    if isinstance(transforms, StorageWriterTransforms):
        for_readers = (codecs, keys, require, safe_globals or None, weights_only or None, max_expansion)
        if extensions is None or for_readers != (None, None, None, None, True, MAX_EXPANSION):
            raise ParameterError("attach to a writer takes extensions= and nothing else")
        known_extensions = extensions_of(extensions)
        chain, *others = known_extensions.chains
        if others:
            raise UnsupportedError(f"{type(target).__name__} is a writer of torch's own, with one chain for all items")
        if chain.raw:
            raise UnsupportedError("a writer of torch's own puts torch.save's frame around tensors, so none is raw")
        made = _WriterTransforms(known_extensions)
        made.begin()  # rather than in the middle of the first save
        target.transforms = made  # type: ignore[attr-defined]
        target.prepare_local_plan = partial(_prepare_local_plan, type(target).prepare_local_plan, target)  # type: ignore[attr-defined]
        if made.extensions:
            target.finish = partial(_finish, type(target).finish, target)  # type: ignore[attr-defined]
        if providers := known_extensions.providers():
            target.storage_meta = partial(_storage_meta, type(target).storage_meta, target, providers)  # type: ignore[attr-defined]
    elif isinstance(transforms, StorageReaderTransforms):
        if extensions is not None:
            raise ParameterError(
                "attach to a reader takes codecs=, keys= and require=, weights_only=, safe_globals= and "
                "max_expansion=; the checkpoint records its chain"
            )
        if require == "published":
            raise ParameterError(
                "an attached reader does not see the index, so it cannot check publication: use "
                "streamxf.FileSystemReader, or require='bound'"
            )
        known = Registry.of(codecs)
        how: Any = {"weights_only": weights_only, "safe_globals": safe_globals, "max_expansion": max_expansion}
        access = Access.of(keys, require=require, codecs=known, **how)
        if access.trust and not len(access.keys):
            raise ParameterError(
                "an attached reader does not see the index, which signatures are of: use streamxf.FileSystemReader "
                "(trust)"
            )
        if require is None and len(access.keys):
            access = replace(access, require="bound")
        reader: Any = target
        reader.transforms = _ReaderTransforms(known, access, reader)
        reader.set_up_storage_reader = reader.transforms.set_up_storage_reader
        reader.read_data = partial(_read_data, type(reader).read_data, reader)
    else:
        raise UnsupportedError(
            f"{type(target).__name__} does not derive from torch's FileSystemWriter or FileSystemReader, so it "
            "takes no extensions"
        )
    return target


def _prepare_local_plan(stock: Callable[..., SavePlan], writer: Any, plan: SavePlan) -> SavePlan:
    """Warn of what a load would not bring back."""
    state = torch_private.state_of_the_save() if plan.planner_data is not None else None
    for text in texts_about(state, for_torch=rank_here() == 0):
        warnings.warn(text, stacklevel=2)
    return stock(writer, plan)


def _storage_meta(stock: Callable[[Any], Any], writer: Any, providers: list[str]) -> Any:
    """What a writer says about its save, and from which packages its codecs are."""
    found = stock(writer)
    if found is not None:
        found.modules += providers
    return found


def _finish(stock: Callable[..., None], writer: Any, metadata: Any, results: list[list[Any]]) -> None:
    """Raise ChainError, in the place of publishing, if ranks have stored items without a codec."""
    bare = [
        rank
        for rank, own in enumerate(results)
        if any(not getattr(each.storage_data, "transform_descriptors", True) for each in own)  # others may have none
    ]
    if bare:
        whom = some((f"rank {rank}" for rank in bare), most=16)
        raise ChainError(
            f"these wrote without the chain that rank 0 has: {whom}. Nothing was published; remove the data files in "
            f"{writer.path}. {REACH}"
        )
    stock(writer, metadata, results)


def _read_data(stock: Callable[..., Any], reader: Any, *args: Any) -> Any:
    """The reader's own, but for what looks like damage on a mount that may show what is old."""
    with open_storage(reader.path).doubting(missing=True) if isinstance(reader.path, Path) else nullcontext():
        return stock(reader, *args)


class _WriterTransforms(StorageWriterTransforms):
    """Opens a bound container for each item.

    One writer id and one data key serve all saves of a process: nothing tells this where a save begins.
    """

    def __init__(self, extensions: Extensions) -> None:
        super().__init__([*extensions.foreign, *extensions.chains.default])
        self._extensions = extensions
        self._begun: tuple[int, bytes, list[str]] | None = None
        self._numbers = count()

    def begin(self) -> tuple[bytes, list[str]]:
        """This process's writer id, and the descriptors of all items, which are one object: pickle then stores it once.

        Raises KeyMissingError, KeyServiceError if the data key cannot be wrapped, as in a copy through a pickle.
        """
        begun = self._begun
        if begun is None or begun[0] != os.getpid():  # a forked child draws a data key of its own
            # in the order in which a reader applies them
            descriptors = [extension.get_descriptor() for extension in reversed(self.extensions)]
            begun = self._begun = os.getpid(), os.urandom(WRITER_ID_BYTES), descriptors
        return begun[1:]

    def transform_save_stream(self, write_item: WriteItem, raw_stream: io.IOBase) -> tuple[IO[bytes], list[str]]:
        writer_id, descriptors = self.begin()
        raw = cast("Any", raw_stream)
        part = part_of(write_item)
        kind = Kind.FRAMED if part.kind is Kind.TENSOR else part.kind
        identity = part._replace(writer_id=writer_id, kind=kind, number=next(self._numbers))
        stream, _ = self._extensions.open(raw, identity, self._extensions.chains.default, published=False)
        return cast("IO[bytes]", stream), descriptors

    def __reduce__(self) -> tuple[Any, ...]:
        return _WriterTransforms, (self._extensions,)


@dataclass(unsafe_hash=True)
class _ItemPartByTorch(ItemPart):
    """An item of which only name, offset and kind are known."""

    offset: tuple[int, ...] | None = None

    def check(self, found: Identity, writer_id: bytes) -> None:
        name = "" if self.place.span is not None else self.item.name
        plain = self.kind if self.offset is None else None
        kind = found.kind if found.kind in (Kind.OBJECT, Kind.VALUE) else None
        if (found.name, found.offset, kind) != (name, self.offset or (), plain):
            raise IdentityError(f"the container holds {found.name!r} at {list(found.offset)}: it was swapped")

    def max_size(self, object_limit: Callable[[int], int | None]) -> int | None:
        if self.place.span is not None:
            return super().max_size(object_limit)
        return object_limit(self.place.size) if self.offset is None else None


class _ReaderTransforms(StorageReaderTransforms):
    """Checks chain, name and policy of each item, and what an object is made of."""

    def __init__(self, registry: Registry, access: Access, reader: Any) -> None:
        super().__init__(registry)
        self._access, self._reader = access, reader
        self._set_up = reader.set_up_storage_reader
        self._begin(())

    def for_chain(self, chain: Chain) -> None:
        """As `ChainReaderMixin.for_chain`."""
        self._access = self._access.under(chain)
        self._begin(())

    def set_up_storage_reader(self, metadata: Any, *args: Any, **kwargs: Any) -> None:
        """In the place of the reader's: nothing else here sees which packages the metadata names."""
        self._begin(getattr(metadata.storage_meta, "modules", ()))
        self._set_up(metadata, *args, **kwargs)

    def _begin(self, modules: Sequence[str]) -> None:
        self._opener = ItemOpener(Metadata("", None, {}, None, tuple(modules)), self._access)
        self._budget = self._access.budget(0)  # pays for values
        self._named: tuple[Blocks, dict[str, tuple[int, int]]] | None = None  # of the last stream of values

    def transform_load_stream(
        self, read_item: ReadItem, transform_descriptors: Sequence[str], raw_stream: IO[bytes]
    ) -> IO[bytes]:
        index = read_item.storage_index
        is_object = read_item.type == LoadItemType.BYTE_IO
        offset = None if is_object else tuple(index.offset or ())
        stored = self._reader.storage_data[index]
        file = f"{self._reader.path}/{stored.relative_path}"
        last = StoredValue.of(transform_descriptors)
        with located(file=file, item=index.fqn):
            if is_raw(transform_descriptors) or (last is not None and last.span is None):
                self._access.refuse_bare("the item")
                return (last or RawTensor(transform_descriptors[0])).transform_from(raw_stream)
            source = FileSlice(raw_stream)
            texts = tuple(transform_descriptors)[::-1][last is not None :]
            span = last.span if last is not None else None
            place = Place(stored.relative_path, stored.offset, source.length, texts, span=span)
            wanted = _ItemPartByTorch(ObjectItem(index.fqn, place), None, offset)
            if span is not None:
                self._check_name(source, wanted)
            blocks = self._opener.blocks(source, wanted)
            if blocks.header is not None:
                blocks = framed(blocks.header, blocks)
            stream = StreamReader(blocks, name=file, item=index.fqn)
            if is_object:
                return io.BytesIO(self._access.objects.renew_at(place, stream.read(), self._budget))
        return cast("IO[bytes]", stream)

    def _check_name(self, source: FileSlice, wanted: _ItemPartByTorch) -> None:
        """Check that a value stands in its stream under its name, which nothing vouches for outside of that."""
        stream = self._opener.values(source, wanted)
        if self._named is None or self._named[0] is not stream:
            self._budget.add(source.length)
            self._named = stream, dict(StreamReader(stream).values(self._budget, len(self._reader.storage_data)))
        if self._named[1].get(wanted.item.name) != wanted.place.span:
            raise IdentityError(f"the stream of values has no {wanted.item.name!r} there: it was swapped")
