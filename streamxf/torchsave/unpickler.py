"""Pickles from outside, followed opcode by opcode: nothing that they name runs, and what they take is counted.

It is Python's own unpickler, in Python. That of C would be up to three times as fast; but nothing that it does can be
counted: keys of equal hashes, each of which a dict compares with all before it, tuples that share their parts, which
take forever to hash, copies of a long text. So C's is let loose only on a pickle that was followed here.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from streamxf.budget import Steps, TooMuch
from streamxf.torchsave.archive import NotSavedByTorch

FREE_OPCODES = 2**20  # besides four for each byte in storage: an empty dict is one, and takes a hundred bytes
_FREE_PLACES = 2**10  # of the memo, which is an array in C
_Unpickler: Any = pickle._Unpickler  # of which little is typed

Actions = dict[int, Callable[[Any], None]]


class StandIn:
    """What stands in the place of something that a pickle names or makes. It does nothing."""

    __slots__ = ()

    def fill(self, unpickler: Unpickler, state: Any) -> None:
        """Take the state that the pickle gives it; raises NotSavedByTorch if torch.save never gives it one."""
        raise NotSavedByTorch("its pickle changes something after it was made, as torch.save never does")


@dataclass(slots=True, eq=False)
class Name(StandIn):
    """A class or function, by its name. `make` gives a record of what it would make of some arguments, and None for
    those that torch.save never calls it with; None in its place is a class of somebody else's.
    """

    name: str
    make: Callable[..., Any] | None = None


class Foreign(StandIn):
    """Something that only its class, or torch, can make: `name`, a class or function; `parts` that go into it."""

    __slots__ = ("_keys", "name", "parts")

    def __init__(self, name: str, *parts: object) -> None:
        self.name = name
        self.parts: list[object] = [*parts]
        self._keys: dict[Any, None] = {}

    def fill(self, unpickler: Unpickler, state: Any) -> None:
        unpickler.steps.charge(state)
        self.extend(unpickler, [state])

    def extend(self, unpickler: Unpickler, items: list[Any]) -> None:
        unpickler.filled.add(self.name)
        self.parts += items

    def put(self, unpickler: Unpickler, key: Any, value: Any) -> None:
        unpickler.steps.charge_key(self._keys, key)
        self._keys[key] = None
        self.extend(unpickler, [key, value])


class Size(tuple[Any, ...]):
    """A ``torch.Size``, which is not a tuple of the pickle's."""

    __slots__ = ()


class Unpickler(_Unpickler):  # type: ignore[misc]
    """One pass over a pickle of protocol 2 or later; `stored` is what it takes in storage, and `more` are the steps
    that it may take besides those for its own length, both in bytes.

    `limit` is how many opcodes it may have. Subclasses define `find_class`, which gives a `Name`, and
    `persistent_load`. `actions`, by opcode, are all that a pickle may do; `filled` names what was filled later.
    """

    actions: ClassVar[Actions]
    on_purpose: type[Exception] = NotSavedByTorch

    def __init__(self, pickled: bytes, stored: int | None = None, more: int = 0) -> None:
        self._file = io.BytesIO(pickled)
        super().__init__(self._file, encoding="utf-8")
        self.read, self.readline = self._file.read, self._file.readline  # as if there were no frames
        self.metastack: list[list[Any]] = []
        self.stack: list[Any] = []
        self.append = self.stack.append
        self.filled: set[str] = set()
        self.limit = FREE_OPCODES + 4 * (len(pickled) if stored is None else stored)
        self.steps = Steps(len(pickled) * 3 // 4 + more)

    def load(self, begin: int = 0) -> Any:
        """What is pickled from `begin`; raises NotSavedByTorch if damaged or excessive, and errors `on_purpose`."""
        read, actions = self.read, self.actions
        self._file.seek(begin)
        try:
            for _ in range(self.limit):
                actions[read(1)[0]](self)
        except pickle._Stop as stop:  # type: ignore[attr-defined]
            return stop.value
        except (self.on_purpose, NotSavedByTorch, MemoryError):
            raise
        except TooMuch as error:
            raise NotSavedByTorch(str(error)) from None
        except Exception as error:  # whatever a damaged pickle makes the unpickler raise
            raise NotSavedByTorch(f"its pickle is damaged ({type(error).__name__})") from None
        raise NotSavedByTorch(f"its pickle has more than {self.limit} opcodes")

    @property
    def position(self) -> int:
        return self._file.tell()

    @property
    def at_end(self) -> bool:
        return self.position == len(self._file.getbuffer())

    def call(self, function: Any, arguments: Any) -> Any:
        if type(function) is not Name or type(arguments) is not tuple:
            raise NotSavedByTorch("its pickle calls something without a name, or without a tuple of arguments")
        self.steps.charge(arguments)
        made = Foreign(function.name, *arguments) if function.make is None else function.make(*arguments)
        return self.refuse(function.name, arguments) if made is None else made

    def refuse(self, name: str, arguments: tuple[Any, ...]) -> Any:
        raise NotSavedByTorch(f"its pickle calls {name} in another way than torch.save does")

    def new(self, function: Any, arguments: Any) -> Any:
        """As `call`, of a class whose `__new__` alone is called."""
        return self.call(function, arguments)

    def _weigh(self, opcode: int, steps: int) -> None:
        """Do what makes much memory of one byte, and count that."""
        self.steps.spend(steps)
        _Unpickler.dispatch[opcode](self)

    def _frame(self) -> None:
        """As C's unpickler, which has the whole frame there, and lets opcodes cross its end."""
        if int.from_bytes(self.read(8), "little") > len(self._file.getbuffer()) - self.position:
            raise NotSavedByTorch("its pickle has a frame that ends behind it")

    def _put(self) -> None:
        place = int.from_bytes(self.read(4), "little")
        if place > len(self.memo) + _FREE_PLACES:
            raise NotSavedByTorch("its pickle has a memo with places that are far away")
        self.memo[place] = self.stack[-1]

    def _memoize(self) -> None:
        memo, top = self.memo, self.stack[-1]
        if memo.get(len(memo) - 1) is top:
            raise NotSavedByTorch("its pickle gives one thing two places in a row")  # each takes 70 bytes
        memo[len(memo)] = top

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = self.call(self.stack[-1], arguments)

    def _new(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = self.new(self.stack[-1], arguments)

    def _build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) is OrderedDict and may_have(OrderedDict, state):
            self.steps.charge(state)
            target.__dict__.update(state)
        elif isinstance(target, StandIn):
            target.fill(self, state)
        else:
            StandIn().fill(self, state)

    def _fill_list(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is list:
            target.extend(items)
        elif type(target) is Foreign:
            target.extend(self, items)
        else:
            raise NotSavedByTorch("its pickle fills something item by item that is not a list")

    def _fill_dict(self, items: list[Any]) -> None:
        target = self.stack[-1]
        fills, foreign = isinstance(target, dict), type(target) is Foreign
        if not fills and not foreign:
            raise NotSavedByTorch("its pickle fills something item by item that is not a dict")
        for at in range(0, len(items), 2):
            if foreign:
                target.put(self, items[at], items[at + 1])
            else:
                self.steps.charge_key(target, items[at])
                target[items[at]] = items[at + 1]

    def _fill_set(self) -> None:
        items, target = self.pop_mark(), self.stack[-1]
        if type(target) is not set:
            raise NotSavedByTorch("its pickle fills something item by item that is not a set")
        for item in items:
            self.steps.charge_key(target, item)
            target.add(item)

    def _freeze(self) -> None:
        self.steps.spend(_WEIGHTS[pickle.EMPTY_SET[0]])
        items = self.steps.set_of(self.pop_mark())  # which replaces `append`
        self.append(frozenset(items))


def may_have(kind: type, state: Any) -> bool:
    """Whether an instance of `kind` can be given these attributes without changing what it does."""
    return type(state) is dict and not any(
        type(key) is not str or key.startswith("__") or hasattr(kind, key) for key in state
    )


# Those of protocols 2 to 5, without extension codes and buffers outside of the pickle, and without bytearrays, of which
# the unpickler would make one as large as the pickle says.
_OPCODES = b"\x80.012NKMGJXUTBCqhj)tcQ\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x93"
# Those of a single byte that take 50 bytes of memory or more, in steps.
_WEIGHTS = {
    pickle.MARK[0]: 2,
    pickle.TUPLE1[0]: 2,
    pickle.EMPTY_LIST[0]: 4,
    pickle.EMPTY_DICT[0]: 4,
    pickle.EMPTY_SET[0]: 6,
}
ACTIONS: Actions = {
    **{opcode: _Unpickler.dispatch[opcode] for opcode in _OPCODES},
    **{opcode: partial(Unpickler._weigh, opcode=opcode, steps=steps) for opcode, steps in _WEIGHTS.items()},
    pickle.FRAME[0]: Unpickler._frame,
    pickle.LONG_BINPUT[0]: Unpickler._put,
    pickle.MEMOIZE[0]: Unpickler._memoize,
    pickle.REDUCE[0]: Unpickler._reduce,
    pickle.NEWOBJ[0]: Unpickler._new,
    pickle.BUILD[0]: Unpickler._build,
    pickle.APPEND[0]: lambda unpickler: unpickler._fill_list([unpickler.stack.pop()]),
    pickle.APPENDS[0]: lambda unpickler: unpickler._fill_list(unpickler.pop_mark()),
    pickle.SETITEM[0]: lambda unpickler: unpickler._fill_dict([unpickler.stack.pop(-2), unpickler.stack.pop()]),
    pickle.SETITEMS[0]: lambda unpickler: unpickler._fill_dict(unpickler.pop_mark()),
    pickle.ADDITEMS[0]: Unpickler._fill_set,
    pickle.FROZENSET[0]: Unpickler._freeze,
}
Unpickler.actions = ACTIONS
