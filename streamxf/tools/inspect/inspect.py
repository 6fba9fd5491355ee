"""`inspect`: a checkpoint of any format, in figures; and `PlainSummary`, a plain file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from typing import Any

from streamxf.budget import MAX_EXPANSION
from streamxf.checkpoint.access import Access, Require
from streamxf.errors import located
from streamxf.formats.contents import Format
from streamxf.formats.opening import contents_of, open_source
from streamxf.keys import KeyRing, KeysLike, TrustLike
from streamxf.keys.envelope import Envelope, Vouchers
from streamxf.progress import Progress
from streamxf.storage.opening import Location, open_storage
from streamxf.storage.storage import Storage
from streamxf.stream.container import BlockReader
from streamxf.stream.plain import PlainParts
from streamxf.stream.plain import open as open_plain
from streamxf.tools.fleet import Fleet
from streamxf.tools.inspect.summary import Summary, TensorStatistics, names_of


def inspect(
    path: Location,
    *,
    keys: KeysLike = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    require: Require | None = None,
    values: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    max_expansion: int = MAX_EXPANSION,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> Summary:
    """Summarize a checkpoint: by dtype, by chain, item by item. Only metadata is read, unless `values` is set.

    Parameters
    ----------
    path : path, str or Storage
        A checkpoint of streamxf or of stock DCP, a ``.safetensors`` or ``torch.save`` file, or a Hugging Face folder;
        or the URL of one.
    keys, trust, allow_unsigned, require
        As in `FileSystemReader`. An encrypted checkpoint is shown without keys, too; with keys its metadata must be
        authentic.
    values : bool
        Whether to read all tensors as well, for `Summary.values`. That takes about as long as a load, and little
        memory; an encrypted checkpoint then needs keys.
    storage_options : mapping, optional
        fsspec's, for a URL.
    max_expansion : int
        As in `diff`; for `values` only.
    progress : Progress, optional
        Receives the size of the tensors as they are counted.
    executor : concurrent.futures.Executor, optional
        Its workers read the tensors, as in `verify`; for `values` only.

    Raises
    ------
    StreamxfError, OSError
        If the path is not a checkpoint that can be read, its metadata is damaged, or the keys do not fit; with `values`
        also if keys are missing. A tensor that cannot be read is in `TensorStatistics.unreadable`.
    """
    keys = tuple(keys) if isinstance(keys, Iterator) else keys
    access = Access.of(keys, trust=trust, allow_unsigned=allow_unsigned, require=require, max_expansion=max_expansion)
    storage = open_storage(path, storage_options)
    fleet = None if executor is None else Fleet(executor, [storage], access, keys)
    with open_source(storage, access, listing=not values) as source:
        contents = contents_of(source)
        if not values:
            return Summary.of(contents)
        from streamxf.tools.values.statistics import statistics_of

        found = Summary.of(contents, TensorStatistics(*statistics_of(source, progress, fleet)))
        return replace(found, notes=(*found.notes, *fleet.notes)) if fleet else found


_UNPROVED = "It is encrypted, and no key was given: what it says here is not authenticated."
_UNSIGNED = "The signature was not checked."


@dataclass(frozen=True)
class PlainSummary:
    """A file that `streamxf.open` wrote, by its prefix, header and footer."""

    path: str
    chain: tuple[str, ...]  # descriptors in save order, without their fragments
    raw_bytes: int  # of what it decodes to
    file_bytes: int
    blocks: int
    block_size: int
    key_ids: tuple[str, ...]  # of the keys that open it, with their kinds, as in ``"aeskw:0123456789abcdef"``
    signers: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ratio(self) -> float | None:
        """Bytes of the file over what it decodes to; None for an empty stream."""
        return self.file_bytes / self.raw_bytes if self.raw_bytes else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        chain = names_of(self.chain)
        more = {"format": str(Format.PLAIN), "ratio": self.ratio, "chain": chain, "descriptors": self.chain}
        return asdict(self) | more

    @classmethod
    def read(cls, storage: Storage, keys: KeyRing) -> PlainSummary:
        """Read what the file says; with keys it has to be true. Raises as `streamxf.open`."""
        with storage.open(random=True) as file, located(file=storage.label()):
            parts = PlainParts.of(file.slice(0, file.size))
            blocks = BlockReader(parts.container, parts.header, None)
            if len(keys):
                file.raw.seek(0)
                open_plain(file.raw, keys=keys).close()  # checks all that there is, except for most blocks
        recipients = Envelope.parse(parts.wrapped).recipients if parts.wrapped else ()
        signature = Vouchers.parse(parts.vouchers).signature if parts.vouchers else None
        notes = [_UNPROVED] if parts.wrapped and not len(keys) else []
        if signature is not None and signature[0] not in [key.id for key in keys.trust]:
            notes.append(_UNSIGNED)
        return cls(
            storage.label(),
            parts.header.chain,
            blocks.size,
            file.size,
            blocks.count,
            blocks.block_size,
            tuple(f"{each.kind}:{each.key_id}" for each in recipients),
            (signature[0],) if signature is not None else (),
            tuple(notes),
        )
