"""What an object's pickle asks for beyond what readers allow, read from its opcodes: nothing is made of it."""

from __future__ import annotations

import io
import pickletools
import re
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import _weights_only_unpickler as torchs

from streamxf.dcp.objects.archive import Archive, NotSavedByTorch
from streamxf.dcp.objects.vet import vet
from streamxf.dcp.objects.vet_values import PLAIN, NeverLoads, TooMuch
from streamxf.descriptor import shorten
from streamxf.errors import ParameterError

MAX_LOOKED_AT = 2**20  # bytes of a pickle; the opcodes of a larger one would take a save noticeably longer
_BLOCKED = ("sys", "os", "posix", "nt")  # modules of which torch takes nothing, whatever is allowed
# A global, or the opcode of a long integer; may also be found where none is.
_SUSPECT = re.compile(rb"c([A-Za-z_][\w.]*)\n([A-Za-z_][\w.]*)\n|\x8b")


def needs_of(data: Any) -> tuple[tuple[str, ...], str]:
    """What the bytes of an object need: names to allow, and why it never loads with weights_only, or "".

    The names are those that neither torch, nor ``torch.serialization.add_safe_globals``, nor streamxf allows.
    """
    try:
        archive = Archive.read(io.BytesIO(data), len(data))
    except NotSavedByTorch as error:
        return (), str(error)
    names = tuple(sorted(names_in(archive.pickled) - _named()))
    blocked = [name for name in names if name.partition(".")[0] in _BLOCKED]
    if blocked:
        return names, f"torch takes nothing from the module of {shorten(ascii(blocked[0])[1:-1])}"
    try:
        vet(archive.pickled, archive.sizes, len(data), {*names, *_named()})
    except NeverLoads as error:
        return names, str(error)
    except TooMuch as error:
        return names, "" if names else str(error)
    return names, ""


def quick_needs(data: memoryview) -> tuple[tuple[str, ...], str]:
    """As `needs_of`, for a save: only what it can find out at no cost that anybody would notice."""
    view: Any = _first_record(data)
    if view is None:
        view = Archive.read(io.BytesIO(data), len(data)).pickled
    if len(view) > MAX_LOOKED_AT:
        return (), ""
    known = torchs._get_allowed_globals()
    for match in _SUSPECT.finditer(view):
        if match[1] is None or _mapped(match[1].decode(), match[2].decode()) not in known:
            return needs_of(data)
    return (), ""


def _first_record(data: memoryview) -> memoryview | None:
    """The pickle of what torch has just saved, found without reading the directory; None if that takes more."""
    head = bytes(data[: 2**16])
    stop = head.find(b"PK\x07\x08")  # the record's end, followed by its checksum and its size
    if len(head) < 30 or stop < 0:
        return None
    start = 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    return data[start:stop] if int.from_bytes(head[stop + 8 : stop + 12], "little") == stop - start else None


def names_in(pickled: bytes) -> set[str]:
    """The names in a pickle that neither torch nor streamxf allows by default; of a damaged one, those before the
    damage.
    """
    return set(_globals(pickled)) - allowed()


@lru_cache(1)
def allowed() -> frozenset[str]:
    """The names that torch, on its own list that is made once, and streamxf allow by default."""
    return frozenset({"builtins.bytes", *PLAIN, *torchs._get_allowed_globals()})


def name_of(entry: Any) -> str:
    """The name by which a pickle calls for what stands in a list of ``safe_globals``."""
    if isinstance(entry, tuple) and len(entry) == 2 and callable(entry[0]) and isinstance(entry[1], str):
        return entry[1]
    if not callable(entry) or not hasattr(entry, "__qualname__"):
        raise ParameterError(
            f"safe_globals holds classes and functions, or pairs of one and its name; {entry!r:.80} is neither"
        )
    return f"{entry.__module__}.{entry.__qualname__}"


def shown(names: Sequence[str], most: int = 5) -> str:
    """Names from a stranger, for people."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shorten(ascii(name)[1:-1]) for name in names[:most]) + more


def chosen() -> frozenset[Any]:
    """What somebody gave to ``torch.serialization.add_safe_globals``, without what torch put there itself.

    Importing DCP makes it allow DeviceMesh, for instance, which opens sockets when it is made.
    """
    return frozenset(entry for entry in torch.serialization.get_safe_globals() if not _is_torchs(entry))


def _is_torchs(entry: Any) -> bool:
    made = entry[0] if isinstance(entry, tuple) else entry
    return str(getattr(made, "__module__", "")).partition(".")[0] == "torch"


def _named() -> set[str]:
    return set(map(name_of, chosen())) - PLAIN.keys()


def _globals(pickled: bytes) -> Iterator[str]:
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name == "GLOBAL":
                yield _mapped(*str(argument).split(" ", 1))
    except (ValueError, IndexError, TypeError):  # torch does not read further, either
        return


def _mapped(module: str, name: str) -> str:
    if (module, name) in NAME_MAPPING:
        module, name = NAME_MAPPING[module, name]
    else:
        module = IMPORT_MAPPING.get(module, module)
    return f"{module}.{name}"
