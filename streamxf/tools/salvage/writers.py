"""Which data files are of one save, where no metadata says so."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from streamxf.checkpoint.publish import OWN_FILE
from streamxf.errors import ParameterError, PolicyError, StreamxfError
from streamxf.format.index import Index
from streamxf.format.limits import TRAILER_BYTES
from streamxf.format.trailer import Trailer
from streamxf.wording import many

_NAMED = re.compile(rb"__[0-9]{1,10}_[0-9]{1,10}_[0-9a-f]{32}\.distcp")
_SHOWN = 64


@dataclass(frozen=True)
class OneSave:
    """The data files of one save, with the writer id of each; and those that are known to be missing."""

    files: dict[str, str]
    missing: tuple[str, ...]


def choose(present: Sequence[str], remains: bytes, chosen: bool | Collection[str]) -> OneSave:
    """Find the files of one save among those of streamxf's writers.

    Each process has an id of its own in each save, and nothing in the files says which of them belong together. What is
    left of ``.metadata`` may: its index lists them all. It is not believed for anything else, and no damage makes up
    the random id of another file.

    `present` are the names of the data files, `remains` is what is left of ``.metadata``, and `chosen` the ids that
    belong together according to the caller. Raises PolicyError if nothing shows which of several ids belong together,
    and ParameterError if no file has an id that the caller names.
    """
    files = {name: _id_of(name) for name in present}
    listed = _listed(remains)
    named = listed if listed is not None else {name.decode("ascii") for name in _NAMED.findall(remains)}
    if chosen is not True:
        ids = set(chosen) if chosen else set()
        if unknown := sorted(ids - set(files.values())):
            raise ParameterError(f"without_metadata=: no data file here has the writer id {unknown[0]!r:.80}")
    elif listed is not None:
        ids = {_id_of(name) for name in listed}
    elif named == set(files) or len(set(files.values())) <= 1:
        ids = set(files.values())
    else:
        raise PolicyError(
            "there are data files of several processes, and not enough is left of .metadata to tell which of them are "
            "of one save: a mixture would look whole. Name the writer ids that belong together, "
            f"without_metadata=[...]. There are {_shown(files)}"
        )
    missing = sorted(name for name in named if _id_of(name) in ids and name not in files)
    return OneSave({name: writer for name, writer in files.items() if writer in ids}, tuple(missing))


def _listed(remains: bytes) -> set[str] | None:
    """The files that an index names which can still be read, though its digest may not match."""
    try:
        trailer = Trailer.parse(remains[-TRAILER_BYTES:], len(remains))
        if trailer is None:
            return None
        begin = len(remains) - trailer.size
        index = Index.parse(memoryview(remains)[begin : begin + trailer.index_size])
    except StreamxfError:
        return None
    if index.rank is not None or not all(map(OWN_FILE.fullmatch, index.files)):
        return None
    return set(index.files)


def _id_of(name: str) -> str:
    return name.removesuffix(".distcp").rpartition("_")[2]


def _shown(files: dict[str, str]) -> str:
    by_id: dict[str, list[str]] = {}
    for name, writer in sorted(files.items()):
        by_id.setdefault(writer, []).append(name.split("_")[2])
    texts = [f"{writer} of rank {ranks[0]} ({many(len(ranks), 'file')})" for writer, ranks in by_id.items()]
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more
