"""From an item's place in a file to its bytes: chain, identity, policy and seal are checked, in that order, before a
block is decoded.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, Literal

from torch.distributed.checkpoint.metadata import MetadataIndex

from streamxf.coder import StreamCoder
from streamxf.container.header import Header, Kind
from streamxf.container.limits import MAGIC
from streamxf.dcp.metadata.manifest import Manifest
from streamxf.dcp.registry import Registry
from streamxf.errors import CodecError, ContainerError, IdentityError, MetadataError, PolicyError, StreamxfError
from streamxf.fileio.blocks import BlockReader, read_header
from streamxf.fileio.opening import ChainOpener
from streamxf.fileio.reader import StreamReader
from streamxf.fileio.slicefile import SliceFile
from streamxf.fileio.source import FileSlice
from streamxf.meter import Meter
from streamxf.proportion import Budget
from streamxf.registry import Provider

Require = Literal["published", "bound", "encrypted"]
REQUIREMENTS: tuple[Require, ...] = ("published", "bound", "encrypted")

RAW_SLACK = 2**20  # what torch.save's framing may add to a tensor; twice its bytes, for subclasses of several parts
MAX_FOREIGN = 64 * 2**30  # a foreign decompressor declares nothing, so this is all that stops it


@dataclass(frozen=True)
class Expected:
    """What the metadata says of an item that is about to be read.

    Attributes
    ----------
    index : MetadataIndex
        Its name, and its offset for a shard of a tensor.
    kind : Kind
    raw_limit : int or None
        The most bytes that it may decode to; None for any number.
    writer : str or None
        Id of the process and save that wrote its file, by the manifest.
    """

    index: MetadataIndex
    kind: Kind
    raw_limit: int | None
    writer: str | None

    def check_size(self, size: int) -> None:
        """Refuse an item that decodes to `size` bytes, if that is more than it can have; raises ContainerError."""
        if self.raw_limit is not None and size > self.raw_limit:
            hint = "; a larger max_expansion= allows more" if self.kind is Kind.BYTES else ""
            raise ContainerError(f"the item decodes to {size} bytes, of which it can have {self.raw_limit}{hint}")


@dataclass(frozen=True)
class _Recipe:
    """How items with one list of descriptors are opened; most checkpoints have a single one."""

    chain: ChainOpener | None
    foreign: list[str]


@dataclass(frozen=True)
class ItemOpener:
    """Opens items of one checkpoint.

    Attributes
    ----------
    registry : Registry
        Codecs, foreign extensions and keys.
    require : str or None
        The weakest item that is acceptable: ``"published"``, ``"bound"`` or ``"encrypted"``; None takes any.
    manifest : Manifest or None
        None where the checkpoint has none.
    providers : tuple of Provider
        What the checkpoint says about the packages of its codecs.
    sees_trailer : bool
        Whether the reader looked for a manifest. Torch's own code reads the metadata past it, so there a missing one
        means nothing.
    budget : Budget, optional
        Pays for what foreign extensions make of items. None for readers, whose callers have made the memory for it.
    """

    registry: Registry
    require: Require | None = None
    manifest: Manifest | None = None
    providers: tuple[Provider, ...] = ()
    sees_trailer: bool = True
    budget: Budget | None = None
    _recipes: dict[tuple[str, ...], _Recipe] = field(default_factory=dict, init=False, repr=False, compare=False)

    def open(
        self, source: FileSlice, descriptors: Sequence[str], expected: Expected, meter: Meter | None = None
    ) -> BlockReader | IO[bytes] | None:
        """Open an item's container, or the stream that foreign extensions make of it; None if it was stored as it is.

        Parameters
        ----------
        meter : Meter, optional
            Is told what decoding takes.

        Raises
        ------
        PolicyError
            If it is weaker than `require`.
        ContainerError, IdentityError, AuthenticationError, MetadataError
            If it is damaged, another item's, altered, or stripped of its descriptors.
        UnknownCodecError, CodecNotAllowedError, DescriptorError, UnsupportedError, KeyMissingError, WrongKeyError
            If its chain cannot be rebuilt.
        """
        recipe = self._recipe(tuple(descriptors))
        if recipe.chain is None:
            self._check_bare(source)
            return self._through_foreign(SliceFile(source), recipe, expected) if recipe.foreign else None
        header = read_header(source)
        self.check_header(header, descriptors, expected)
        check_size = None if recipe.foreign else expected.check_size
        blocks = BlockReader(source, header, recipe.chain.coder(header, meter), check_size)
        if recipe.foreign:
            return self._through_foreign(StreamReader(blocks, meter=meter), recipe, expected)
        return blocks

    def open_foreign(self, source: FileSlice, descriptors: Sequence[str], expected: Expected) -> IO[bytes]:
        """The stream that foreign extensions make of an item, to be read once from its beginning to its end; raises as
        `open`, and ContainerError from a read beyond what the item can have.
        """
        recipe = self._recipe(tuple(descriptors))
        stream: Any = SliceFile(source)
        if recipe.chain is None:
            self._check_bare(source)
        else:
            header = read_header(source)
            self.check_header(header, descriptors, expected)
            stream = StreamReader(BlockReader(source, header, recipe.chain.coder(header)))
        return self._capped(stream, recipe, expected)

    def check_header(self, header: Header, descriptors: Sequence[str], expected: Expected) -> None:
        """Compare chain and identity with what the metadata says, and both with what the caller requires; raises as
        `open`, but for a chain that is unknown.
        """
        recorded = tuple(text.partition("#")[0] for text in reversed(descriptors))
        if header.chain != recorded:
            raise IdentityError(
                f"the stored chain is {' > '.join(header.chain)}, the metadata says {' > '.join(recorded)}: "
                "one of them was altered"
            )
        self._check_identity(header, expected)
        self._check_policy(header)

    def in_container(self, descriptors: Sequence[str]) -> bool:
        """Whether items with these descriptors stand in containers; raises as `open` for a chain that is unknown."""
        return self._recipe(tuple(descriptors)).chain is not None

    def is_foreign(self, descriptors: Sequence[str]) -> bool:
        """Whether foreign extensions come first in the chain; raises as `open`."""
        return bool(self._recipe(tuple(descriptors)).foreign)

    def coder(self, header: Header, descriptors: Sequence[str]) -> StreamCoder | None:
        """What decodes the blocks of a container; None for an item without one. Raises as `open`."""
        chain = self._recipe(tuple(descriptors)).chain
        return None if chain is None else chain.coder(header)

    def _recipe(self, descriptors: tuple[str, ...]) -> _Recipe:
        recipe = self._recipes.get(descriptors)
        if recipe is None:
            codecs, foreign = self.registry.split(descriptors, self.providers)
            registry = self.registry
            chain = ChainOpener(codecs[::-1], registry.keys, registry.codecs, self.providers) if codecs else None
            recipe = self._recipes[descriptors] = _Recipe(chain, foreign)
        return recipe

    def _check_bare(self, source: FileSlice) -> None:
        if source.length >= len(MAGIC) and source.read_at(0, len(MAGIC)) == MAGIC:
            raise MetadataError(
                "the item is stored in a container, but the metadata gives it no codecs: its descriptors were removed"
            )
        if self.require is not None:
            raise self._not_encrypted()

    def _check_identity(self, header: Header, expected: Expected) -> None:
        found = header.identity
        if found is None:
            if self.manifest is not None:
                raise IdentityError(
                    "the item is not bound to its place, though the checkpoint was written by streamxf's writer: it "
                    "comes from elsewhere"
                )
            return
        wanted = (expected.index.fqn, tuple(expected.index.offset or ()), expected.kind)
        if (found.name, found.offsets, found.kind) != wanted:
            raise IdentityError(
                f"the container holds the {found.kind.name.lower()} item {found.name!r} at {list(found.offsets)}: it "
                "was swapped"
            )
        if expected.writer is not None and found.writer_id.hex() != expected.writer:
            raise IdentityError("the container was written by another process or save than its file: it was swapped")
        if header.published and self.manifest is None and self.sees_trailer:
            raise MetadataError(
                "the item was published with a manifest, and the metadata has none: its trailer was removed"
            )
        if not header.published and self.manifest is not None:
            raise IdentityError("the item was not published, though the checkpoint was: it comes from elsewhere")

    def _check_policy(self, header: Header) -> None:
        if self.require is None:
            return
        if not header.keyed:
            raise self._not_encrypted()
        if self.require in ("published", "bound") and header.identity is None:
            raise PolicyError(
                "the item is encrypted but not bound to its place (torch's own writer cannot do that), so items "
                "could be swapped; require='encrypted' accepts it"
            )
        if self.require == "published" and not header.published:
            raise PolicyError(
                "the item is bound to its place but was not published by streamxf's writer, so a mixture of saves "
                "would pass; require='bound' accepts it"
            )

    def _not_encrypted(self) -> PolicyError:
        return PolicyError(
            f"the item is not encrypted, and keys were given, so {self.require!r} is required; leave keys= out "
            "if you know that it was not encrypted"
        )

    def _through_foreign(self, stream: Any, recipe: _Recipe, expected: Expected) -> IO[bytes]:
        whole = io.BytesIO()
        capped = self._capped(stream, recipe, expected)
        while data := capped.read(2**20):
            whole.write(data)
        whole.seek(0)
        return whole

    def _capped(self, stream: Any, recipe: _Recipe, expected: Expected) -> IO[bytes]:
        with _foreign_errors():
            for extension in self.registry.foreign(recipe.foreign):
                stream = extension.transform_from(stream)
        limit = MAX_FOREIGN if expected.raw_limit is None else min(expected.raw_limit, MAX_FOREIGN)
        capped: Any = _Capped(stream, limit, self.budget)
        return capped  # type: ignore[no-any-return]


@contextmanager
def _foreign_errors() -> Iterator[None]:
    """Replace what a foreign extension raises where it cannot undo what is stored, such as python-zstandard's
    ``ZstdError``, by a `CodecError`.
    """
    try:
        yield
    except (StreamxfError, OSError, MemoryError):
        raise
    except Exception as error:
        raise CodecError(f"the item cannot be decoded: {type(error).__name__}: {error}") from error


class _Capped:
    """What a foreign extension makes of its input, up to `limit` bytes, and as far as `budget` goes: what it
    decompresses comes from outside, and it declares no size.
    """

    def __init__(self, stream: Any, limit: int, budget: Budget | None) -> None:
        self._stream = stream
        self._budget = budget
        self._limit = limit
        self._left = limit

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end."""
        with _foreign_errors():
            data: bytes = self._stream.read(min(size, self._left + 1)) or b""
        self._left -= len(data)
        if self._left < 0:
            raise ContainerError(
                f"a stream extension makes more than {self._limit} bytes of the item, which is all that it can hold"
            )
        if self._budget is not None:
            self._budget.spend(len(data), "what a stream extension makes of the item")
        return data
