"""The pass over a pickle, and C's unpickler, which is let loose on what it accepts: both read the same.

Whatever a pickle names is a record here, for both, so that nothing but its opcodes decides what comes of it.
"""

import io
import pickle
from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from streamxf.torchsave.archive import Archive, NotSavedByTorch
from streamxf.torchsave.unpickler import ACTIONS, Actions, Foreign, Name, Unpickler
from tests.archives import saved
from tests.fuzz.oracle import Finding, agree, modest
from tests.fuzz.pickles import change_pickle
from tests.fuzz.target import Target
from tests.fuzz.target_stock import example

SHARED = [1, "text"]
PLAIN = {
    "numbers": (0, -1, 255, 2**31, -(2**80), 0.5, True, None),
    "sets": [{1, "a", (2, b"b")}, frozenset((3, ("c", 4.0)))],
    "shared": [SHARED, SHARED, (), {}],
}


class Pass(Unpickler):
    """Without frames: an opcode that crosses the end of one loses the bytes before it in C."""

    actions: ClassVar[Actions] = {opcode: action for opcode, action in ACTIONS.items() if opcode != pickle.FRAME[0]}

    def __init__(self, pickled: bytes) -> None:
        super().__init__(pickled)
        self._names: dict[str, Name] = {}

    def find_class(self, module: str, name: str) -> Name:
        return self._names.setdefault(f"{module}.{name}", Name(f"{module}.{name}"))

    def persistent_load(self, reference: Any) -> Foreign:
        return Foreign(".stored", reference)


class Record:
    """As `Foreign`, for C's unpickler; each name has a class."""

    name: ClassVar[str]
    parts: list[Any]

    def __new__(cls, *parts: Any) -> Any:
        made = super().__new__(cls)
        made.parts = [*parts]
        return made

    def __setstate__(self, state: Any) -> None:
        self.parts.append(state)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.parts += [key, value]

    def append(self, item: Any) -> None:
        self.parts.append(item)

    def extend(self, items: list[Any]) -> None:
        self.parts += items


class InC(pickle.Unpickler):
    def __init__(self, pickled: bytes) -> None:
        super().__init__(io.BytesIO(pickled), encoding="utf-8")
        self._classes: dict[str, type[Record]] = {}

    def find_class(self, module: str, name: str) -> type[Record]:
        full = f"{module}.{name}"
        return self._classes.setdefault(full, type("Named", (Record,), {"name": full}))

    def persistent_load(self, reference: Any) -> Record:
        made: Record = self.find_class("", "stored")(reference)
        return made


def run(data: bytes) -> None:
    with modest():
        try:
            ours = Pass(data).load()
        except NotSavedByTorch:
            return
        try:
            theirs = InC(data).load()
        except Exception as error:
            if "unsupported pickle protocol" not in str(error):  # a number that the pass skips
                raise Finding(f"only C's unpickler refuses this: {error!r}") from error
        else:
            compare(ours, theirs)


def compare(ours: Any, theirs: Any) -> None:
    """The same in the same places, and shared where the other is."""
    counterparts: dict[int, Any] = {}
    taken: set[int] = set()
    left = [(ours, theirs)]
    while left:
        one, other = left.pop()
        (kind, parts), (their_kind, others) = taken_apart(one), taken_apart(other)
        agree(kind == their_kind and len(parts) == len(others), f"{kind:.80} is {their_kind:.80} to C's unpickler")
        if id(one) in counterparts:
            agree(counterparts[id(one)] is other, f"{kind:.80} is one thing in one of them")
        elif parts:
            agree(id(other) not in taken, f"{kind:.80} is one thing in one of them")
            counterparts[id(one)] = other
            taken.add(id(other))
            left += zip(parts, others, strict=True)


def taken_apart(value: Any) -> tuple[str, list[Any]]:
    """What it is, and of what parts."""
    match value:
        case Foreign() | Record():
            return value.name, value.parts
        case Name() | type():
            return f"named {value.name}", []
        case list() | tuple():
            return type(value).__name__, [*value]
        case dict():
            return "dict", [part for pair in value.items() for part in pair]
        case set() | frozenset():
            return f"{type(value).__name__} {sorted(map(text_of, value))}", []
        case int():
            return f"{type(value).__name__} {value:x}", []
    return f"{type(value).__name__} {value!r}", []


def text_of(member: Any) -> str:
    """A member of a set, which has an order of its own in each of the two."""
    kind, parts = taken_apart(member)
    return kind + str([*map(text_of, parts)] if type(member) is tuple else len(parts))


def seeds() -> Iterable[bytes]:
    module = torch.nn.Linear(2, 3)
    for value in (module.state_dict(), torch.optim.SGD(module.parameters(), momentum=0.5).state_dict(), PLAIN):
        file = saved(value)
        yield Archive(io.BytesIO(file), len(file)).pickled
    yield example(2)
    for pickled in (example(4), pickle.dumps(PLAIN, 4), pickle.dumps(PLAIN, 5)):
        yield pickled[:2] + pickled[11:]  # without its frame


TARGET = Target(run, seeds, change_pickle)
