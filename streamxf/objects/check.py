"""What an object's pickle would do, found out before torch's weights-only unpickler is let loose on it.

That unpickler decides which names a pickle may use, and hardly how: a few bytes can ask for a ``bytearray`` of any
size, make a set of a tensor that is one number expanded to a million, resize a storage to whatever a tensor's shape
says, or use as a key a tuple of tuples that share their parts, which takes forever to hash. Here the same opcodes are
followed with `calls` in the place of what they name, and what they take is counted. An object that needs nothing of
torch's and no class of the caller's is complete then, and torch never sees its pickle.
"""

from __future__ import annotations

import io
import pickle
import re
import sys
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from streamxf.descriptor import shorten
from streamxf.errors import ParameterError
from streamxf.objects import calls
from streamxf.objects.stand_ins import BYTES_IO, Array, Bytes, DType, group_of
from streamxf.proportion import ELEMENT, Steps, TooMuch
from streamxf.storage.source import ForkLock
from streamxf.torchsave.archive import Archive, NotSavedByTorch
from streamxf.torchsave.pickles import ACTIONS, CountingUnpickler

_PROTOCOL = 2
_BLOCKED = ("sys", "os", "posix", "nt")  # modules of which torch takes nothing, whatever is allowed


_lending = ForkLock()
_lent: set[Any] = set()


@contextmanager
def lent(entries: Set[Any]) -> Iterator[None]:
    """Have `entries` on the list for a while. Other loads wait, so that none gets what was lent to another; what is on
    the list already stays there, which torch's own context manager would take off.
    """
    import torch

    if not entries:
        yield
        return
    with _lending.here():
        new = entries - frozenset(torch.serialization.get_safe_globals())
        _lent.update(new)
        try:
            with torch.serialization.safe_globals(list(new)):
                yield
        finally:
            _lent.difference_update(new)


def chosen() -> Set[str]:
    """The names that were passed to ``torch.serialization.add_safe_globals``. What torch put there itself does not
    count: importing DCP makes it allow DeviceMesh, for instance, which opens sockets when it is made.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return frozenset()
    found = frozenset(torch.serialization.get_safe_globals()) - _lent
    homes = {entry: getattr(entry[0] if isinstance(entry, tuple) else entry, "__module__", "") for entry in found}
    return names_of(entry for entry, home in homes.items() if not f"{home}.".startswith("torch."))


def names_of(entries: Iterable[Any]) -> Set[str]:
    """The names by which pickles ask for what a list of ``safe_globals`` holds; raises ParameterError."""
    return frozenset(map(_name_of, entries))


@lru_cache(1024)
def _name_of(entry: Any) -> str:
    if isinstance(entry, tuple) and len(entry) == 2 and callable(entry[0]) and isinstance(entry[1], str):
        return entry[1]
    if not callable(entry) or not hasattr(entry, "__qualname__"):
        raise ParameterError(
            f"safe_globals takes classes and functions, or pairs of one and its name; {entry!r:.80} is neither"
        )
    return f"{entry.__module__}.{entry.__qualname__}"


def mapped(module: str, name: str) -> str:
    """A name as torch looks it up, which a pickle has as Python 2 had it."""
    if (module, name) in NAME_MAPPING:
        module, name = NAME_MAPPING[module, name]
    else:
        module = IMPORT_MAPPING.get(module, module)
    return f"{module}.{name}"


def is_known(name: str) -> bool:
    return name in calls.VALUES or name in calls.CALLS


class Check(CountingUnpickler):
    """One pass over a pickle of ``torch.save``.

    Torch's unpickler reads the same bytes afterwards, so what the two could read in different ways is an error.

    - `sizes`: bytes of the archive's records; `stored`: bytes that the item takes in storage.
    - `trusted`: gives the names that the caller allows, whose calls are the caller's business.
    - `names`: all that it asks for; `unknown`: those that neither streamxf nor the caller allows.
    - `never`: why torch refuses it whatever is allowed, or "".
    """

    def __init__(
        self, pickled: bytes, sizes: Mapping[str, int], stored: int, trusted: Callable[[], Set[str]] = frozenset
    ) -> None:
        super().__init__(pickled, stored)
        self.names: set[str] = set()
        self.unknown: set[str] = set()
        self.never = ""
        self._sizes = sizes
        self._trusted = trusted
        self._kinds: dict[str, str] = {}
        self.steps = Steps(len(pickled) // 2 + sum(sizes.values()) * 4 // ELEMENT)

    @property
    def plain(self) -> bool:
        return self.names <= calls.PLAIN.keys() and not self._kinds and not self.unknown

    def find_class(self, module: str, name: str) -> calls.Name:
        full = mapped(module, name)
        self.names.add(full)
        group = group_of(full)
        if is_known(full) and (not group or group.isdisjoint(self._trusted())):
            return calls.Own(full)
        if full not in self._trusted():
            self.unknown.add(full)
        if full.rpartition(".")[0] in _BLOCKED:
            self._refuse(f"torch allows nothing from the module of {shorten(ascii(full)[1:-1])}")
        return calls.Name(full)

    def persistent_load(self, pid: Any) -> calls.StorageRecord:
        fields: tuple[Any, ...] = pid if type(pid) is tuple else ()
        if [*map(type, fields)] != [str, calls.Own, str, str, int] or fields[0] != "storage":
            raise TooMuch("its pickle refers to something that is not a storage")
        _, kind, key, _, count = fields
        if self._kinds.setdefault(key, kind.name) != kind.name:  # torch makes it once, of the kind that comes first
            raise TooMuch("its pickle refers to one storage as two of different kinds")
        itemsize, nbytes = calls.STORAGE_SIZES.get(kind.name), self._sizes.get(f"data/{key}", -1)
        if itemsize is None or nbytes != count * itemsize:
            raise TooMuch(f"its pickle says that a storage has {count} elements, and its file has {nbytes} bytes of it")
        return calls.StorageRecord(nbytes, itemsize)

    def call(self, function: Any, arguments: Any) -> Any:
        if not isinstance(function, calls.Name) or type(arguments) is not tuple:
            raise TooMuch("its pickle calls something that has no name, or with what is not a tuple")
        for argument in arguments:
            self.steps.charge(argument)
        if type(function) is calls.Name:
            return calls.Made(function.name)
        made = calls.CALLS[function.name](self, *arguments) if function.name in calls.CALLS else None
        if made is None:
            raise TooMuch(f"its pickle calls {function.name} in another way than torch.save does")
        return made

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = self.call(self.stack[-1], arguments)

    def _new(self) -> None:
        function = self.stack[-2]
        if type(function) is calls.Own and function.name != BYTES_IO:  # a set, for one, would stay empty
            raise TooMuch(f"its pickle makes a {function.name} in another way than torch.save does")
        self._reduce()

    def _build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        self.steps.charge(state)
        if isinstance(target, Array | Bytes | DType):
            target.__setstate__(state)
        elif type(target) is OrderedDict and calls.may_have(OrderedDict, state):
            target.__dict__.update(state)
        elif type(target) is not calls.Made:  # a tensor would get another size, an attribute stand in for a method
            raise TooMuch("its pickle changes something after it was made, as torch.save never does")

    def _proto(self) -> None:
        if self.read(1)[0] != _PROTOCOL:
            raise TooMuch("its pickle is not of protocol 2, as those of torch.save are")

    def _long4(self) -> None:
        self._refuse("it holds an integer of more than 255 bytes")
        self.read(int.from_bytes(self.read(4), "little"))
        self.append(0)

    def _fill_list(self, items: list[Any]) -> None:
        if self._may_fill(list):
            self.stack[-1].extend(items)

    def _fill_dict(self, items: list[Any]) -> None:
        fills, target = self._may_fill(dict, OrderedDict, Counter), self.stack[-1]
        for at in range(0, len(items), 2):
            key, value = items[at], items[at + 1]
            self.steps.charge_key(target if fills else (), key)
            if fills:
                target[key] = value

    def _may_fill(self, *kinds: type) -> bool:
        target = self.stack[-1]
        if type(target) is calls.Made:
            name = shorten(ascii(target.name)[1:-1])
            self._refuse(f"it fills a {name} item by item, which torch does for lists and dicts only")
        elif type(target) not in kinds:
            raise TooMuch("its pickle fills something item by item that is not a list or dict")
        return type(target) is not calls.Made

    def _refuse(self, reason: str) -> None:
        self.never = self.never or reason


Check.actions = {
    **{opcode: ACTIONS[opcode] for opcode in b".(NKMGJXUqrhj]})tcQ\x85\x86\x87\x88\x89\x8a"},
    pickle.PROTO[0]: Check._proto,
    pickle.LONG4[0]: Check._long4,
    pickle.APPEND[0]: lambda check: check._fill_list([check.stack.pop()]),
    pickle.APPENDS[0]: lambda check: check._fill_list(check.pop_mark()),
    pickle.SETITEM[0]: lambda check: check._fill_dict([check.stack.pop(-2), check.stack.pop()]),
    pickle.SETITEMS[0]: lambda check: check._fill_dict(check.pop_mark()),
    pickle.REDUCE[0]: Check._reduce,
    pickle.NEWOBJ[0]: Check._new,
    pickle.BUILD[0]: Check._build,
}


MAX_LOOKED_AT = 2**20  # bytes of a pickle; the opcodes of a larger one would take a save noticeably longer
# The end of a global's module before its name, or the opcode of a long integer; may also be found where none is.
_SUSPECT = re.compile(rb"\n(?=([A-Za-z_][\w.]*)\n)|\x8b")
# Searched by itself: one pattern for both would go through a long string again from each `c` in it.
_MODULE = re.compile(rb"c([A-Za-z_][\w.]*)\Z")
_LONGEST = 256


def needs_of(data: Any) -> tuple[tuple[str, ...], str]:
    """What the bytes of an object need: names to allow, and why it does not load then either, or ""."""
    try:
        archive = Archive(io.BytesIO(data), len(data))
    except NotSavedByTorch as error:
        return (), str(error)
    check = Check(archive.pickled, archive.sizes, len(data), chosen)
    try:
        check.load()
    except TooMuch as error:
        return tuple(sorted(check.unknown)), check.never or str(error)
    return tuple(sorted(check.unknown)), check.never


def quick_needs(data: memoryview) -> tuple[tuple[str, ...], str]:
    """As `needs_of`, for a save: only what it can find out at no cost that anyone would notice."""
    pickled: Any = _first_record(data)
    if pickled is None:
        pickled = Archive(io.BytesIO(data), len(data)).pickled
    if len(pickled) > MAX_LOOKED_AT:
        return (), ""
    for match in _SUSPECT.finditer(pickled):
        name = ""
        if match[1] is not None:
            module = _MODULE.search(pickled[max(0, match.start() - _LONGEST) : match.start()])
            if module is None:
                continue
            name = mapped(module[1].decode(), match[1].decode())
        if not is_known(name):
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


def shown(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shorten(ascii(name)[1:-1]) for name in names[:most]) + more
