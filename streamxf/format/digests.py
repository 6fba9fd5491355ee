"""The digests of a signed checkpoint: SHA-256 of what is stored, block by block; docs/format.md, "Digests"."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamxf.errors import BlockError, IdentityError, StreamxfError
from streamxf.format import columns as col
from streamxf.format.columns import IndexPart, PartEntry, pack_part
from streamxf.format.limits import DIGEST_BYTES
from streamxf.format.sections import bad

_IN_A_PART = 16_384
_KEPT = 64  # parts that were read, of half a MiB each
_NOTHING: Mapping[str, int] = {}


@dataclass(eq=False)
class Digests:
    """All digests of an index, read when asked for, by any thread.

    - `read`: gives bytes of the parts, from a position, so many.
    - `bases`: for files whose chunks count their digests from the file's first, which ordinal that has.
    - `on_error`, `beside`: as of `ItemParts`.
    """

    parts: Sequence[PartEntry]
    read: Callable[[int, int], bytes]
    bases: Mapping[str, int] = field(default_factory=dict)
    _known: OrderedDict[int, bytes] = field(default_factory=OrderedDict, init=False, repr=False)
    on_error: list[Callable[[Exception], None]] = field(default_factory=list, init=False, repr=False)
    beside: Any = field(default=None, init=False, repr=False)

    @classmethod
    def of(cls, data: bytes, bases: Mapping[str, int] = _NOTHING) -> Digests:
        """Those in memory, one after the other."""
        made = cls((PartEntry(0, 0, 0, 0, b""),), lambda at, size: b"", bases)
        made._known[0] = data
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digests) and b"".join(self) == b"".join(other)

    def __reduce__(self) -> Any:
        return Digests.of, (b"".join(self), self.bases)

    def __iter__(self) -> Iterator[bytes]:
        """All of them, some at a time."""
        return map(self._part, range(len(self.parts)))

    def some(self, first: int, count: int) -> bytes:
        """So many from an ordinal on; raises MetadataError if there are not as many."""
        found, ordinal = b"", first
        while (missing := first + count - ordinal) > 0:
            number = bisect_right(self.parts, ordinal, key=lambda entry: entry.begin) - 1
            if number < 0:
                bad("there are no digests")
            begin = (ordinal - self.parts[number].begin) * DIGEST_BYTES
            more = self._part(number)[begin : begin + missing * DIGEST_BYTES]
            if not more:
                bad("a chunk has digests that there are not")
            found += more
            ordinal += len(more) // DIGEST_BYTES
        return found

    def _part(self, number: int) -> bytes:
        if (known := self._known.get(number)) is not None:
            return known
        entry = self.parts[number]
        try:
            part = IndexPart.parse(self.read(entry.at, entry.size), entry, [col.DIGEST])
            if part.chunks or not part.rows or entry.begin + part.rows != self._end(number, part.rows):
                bad("a part of digests")
        except (StreamxfError, OSError) as error:
            for tell in self.on_error:
                tell(error)
            raise
        found = self._known[number] = bytes(part[col.DIGEST])
        with suppress(KeyError):  # other threads make room, too
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return found

    def _end(self, number: int, rows: int) -> int:
        return self.parts[number + 1].begin if number + 1 < len(self.parts) else self.parts[number].begin + rows

    def packed(self, parts: list[bytes]) -> Iterator[dict[str, Any]]:
        """What the root says of their parts, which are added to `parts`."""
        data, step = b"".join(self), _IN_A_PART * DIGEST_BYTES
        for at in range(0, len(data), step):
            some = data[at : at + step]
            packed, entry = pack_part(len(some) // DIGEST_BYTES, 0, {col.DIGEST: some}, at // DIGEST_BYTES)
            parts.append(packed)
            yield entry


class Expected(NamedTuple):
    """The digests of one chunk: those from `first` on."""

    digests: Digests
    first: int

    def of_container(self, edges: bytes, count: int) -> bytes:
        """Those of its blocks; IdentityError unless the digest of header, table and footer is that of its `edges`."""
        if self.digests.some(self.first, 1) != edges:
            raise IdentityError("the container is another than the metadata vouches for: it was altered, or swapped")
        return self.digests.some(self.first + 1, count)


def check_block(digests: bytes | None, index: int, *stored: bytes | memoryview) -> None:
    """Raise BlockError unless these bytes of a block have its digest, where there are `digests`."""
    if digests is not None and digest_of(*stored) != digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]:
        raise BlockError("the block is not the one that the metadata vouches for: it was altered", block=index)


def digest_of(*stored: bytes | memoryview) -> bytes:
    made = hashlib.sha256()
    for each in stored:
        made.update(each)
    return made.digest()
