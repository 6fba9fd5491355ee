"""Pickles from outside, followed opcode by opcode, while what they take is counted.

It is Python's own unpickler, in Python. In C it would be up to three times as fast; but its memo is an array, and place
2^31 takes gigabytes, in nine bytes; and nothing that it does can be counted: keys of equal hashes, each of which a dict
compares with all before it, tuples that share their parts, which take forever to hash, copies of a long text.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

from streamxf.proportion import Steps, TooMuch

FREE_OPCODES = 2**20  # besides four for each byte in storage: an empty dict is one, and takes a hundred bytes
_Unpickler: Any = pickle._Unpickler  # of which little is typed

Actions = dict[int, Callable[[Any], None]]


class CountingUnpickler(_Unpickler):  # type: ignore[misc]
    """One pass over a pickle of protocol 2 or later; `stored` is what it takes in storage, in bytes.

    Subclasses define `find_class` and `persistent_load`; `actions`, by opcode, are all that a pickle may do. It may set
    the state of `records` alone, whose classes expect anything there, and change nothing else that was made.
    """

    actions: Actions
    records: tuple[type[Any], ...] = ()
    on_purpose: tuple[type[Exception], ...] = ()

    def __init__(self, pickled: bytes, stored: int | None = None) -> None:
        self._file = io.BytesIO(pickled)
        super().__init__(self._file, encoding="utf-8")
        self.read, self.readline = self._file.read, self._file.readline  # as if there were no frames
        self.metastack: list[list[Any]] = []
        self.stack: list[Any] = []
        self.append = self.stack.append
        self._limit = FREE_OPCODES + 4 * (len(pickled) if stored is None else stored)
        self.steps = Steps(len(pickled) * 3 // 4)

    def load(self) -> Any:
        """What is pickled. Raises TooMuch if it is damaged or out of proportion, and what is raised `on_purpose`."""
        read, actions = self.read, self.actions
        try:
            for _ in range(self._limit):
                actions[read(1)[0]](self)
        except pickle._Stop as stop:  # type: ignore[attr-defined]
            return stop.value
        except Exception as error:  # whatever a damaged pickle makes the unpickler raise
            if isinstance(error, (*self.on_purpose, TooMuch, MemoryError)):
                raise
            raise TooMuch(f"its pickle is damaged ({type(error).__name__})") from None
        raise TooMuch(f"its pickle has more than {self._limit} opcodes")

    @property
    def at_end(self) -> bool:
        return self._file.tell() == len(self._file.getbuffer())

    def _weigh(self, opcode: int, steps: int) -> None:
        """Do what makes much memory of one byte, and count that."""
        self.steps.spend(steps)
        _Unpickler.dispatch[opcode](self)

    def _memoize(self) -> None:
        memo, top = self.memo, self.stack[-1]
        if memo.get(len(memo) - 1) is top:
            raise TooMuch("its pickle gives one thing two places in a row")  # each takes 70 bytes
        memo[len(memo)] = top

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        self.steps.charge(arguments)
        self.stack[-1] = self.stack[-1](*arguments)

    def _new(self) -> None:
        arguments = self.stack.pop()
        self.steps.charge(arguments)
        self.stack[-1] = self.stack[-1].__new__(self.stack[-1], *arguments)

    def _build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if not isinstance(target, self.records):
            raise TooMuch("its pickle changes something after it was made")
        target.__setstate__(state)

    def _fill_dict(self, items: list[Any]) -> None:
        target = self.stack[-1]
        for at in range(0, len(items), 2):
            if isinstance(target, dict):
                self.steps.charge_key(target, items[at])
            target[items[at]] = items[at + 1]

    def _fill_set(self) -> None:
        for item in self.pop_mark():
            self.steps.charge_key(self.stack[-1], item)
            self.stack[-1].add(item)

    def _freeze(self) -> None:
        self.steps.spend(_WEIGHTS[pickle.EMPTY_SET[0]])
        items = self.steps.set_of(self.pop_mark())  # which replaces `append`
        self.append(frozenset(items))


# Those of protocols 2 to 5, without extension codes and buffers outside of the pickle, and without bytearrays, of which
# the unpickler would make one as large as the pickle says.
_OPCODES = b".012NKMGJXUTBCqrhj)tacQR\x81\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x93e"
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
    **{opcode: partial(CountingUnpickler._weigh, opcode=opcode, steps=steps) for opcode, steps in _WEIGHTS.items()},
    pickle.PROTO[0]: lambda unpickler: unpickler.read(1),
    pickle.FRAME[0]: lambda unpickler: unpickler.read(8),
    pickle.MEMOIZE[0]: CountingUnpickler._memoize,
    pickle.REDUCE[0]: CountingUnpickler._reduce,
    pickle.NEWOBJ[0]: CountingUnpickler._new,
    pickle.BUILD[0]: CountingUnpickler._build,
    pickle.SETITEM[0]: lambda unpickler: unpickler._fill_dict([unpickler.stack.pop(-2), unpickler.stack.pop()]),
    pickle.SETITEMS[0]: lambda unpickler: unpickler._fill_dict(unpickler.pop_mark()),
    pickle.ADDITEMS[0]: CountingUnpickler._fill_set,
    pickle.FROZENSET[0]: CountingUnpickler._freeze,
}
CountingUnpickler.actions = ACTIONS
