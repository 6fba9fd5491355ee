"""A pickle machine for what cannot be trusted: it knows what pickled ``Metadata`` is made of, and nothing else.

Python's own unpickler takes memory and time for whatever a pickle says: a table for two thousand million memorised
objects, a gigabyte before it notices that the file is over, a tuple of tuples of tuples whose hash takes a year. To
look through the pickle first, and then hand it over, leaves open whether both understood the same. So it is read here,
by the one who checks it:

- Opcodes that pickles of protocol 2 to 5 do not need for `Metadata` are refused. That leaves texts, numbers, lists,
  tables, tuples, names, and objects made from these.
- What a name stands for is the caller's business. Here a name can be called, or an instance of it be made and be
  filled in, once; it never is an object to set things on.
- Lengths are compared with what is there. Memorised objects are numbered one after the other, as pickling numbers them.
- Objects are charged a number of bytes of the pickle, so that the memory stays below a small multiple of the file.
- Keys of tables are texts, numbers and objects that the caller knows to be quick to hash; few share a hash, and none
  stands twice in a table.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from streamxf.dcp.metadata.limits import MAX_DEPTH, MAX_NAME
from streamxf.dcp.metadata.names import OBJECT_CHARGE, TUPLE_CHARGE, Fill, Find, Name
from streamxf.dcp.metadata.records import Impossible, Kinds
from streamxf.errors import MetadataError

MAX_SAME_HASH = 8
MAX_MAGNITUDE = 2**64  # of numbers, which have 64 bits and a sign
FREE = 2**16  # bytes that even the smallest pickle may be charged

_FLOAT = struct.Struct(">d")


class Machine:
    """Reads one pickle.

    Parameters
    ----------
    data : bytes
    find : callable
        From module and name to a `Name`, or to a constant; raises for all that do not belong there.
    fill : mapping of type to callable
        For instances that `Name.make` made: gets the instance, the state that the pickle gives it, and a `Pay`; raises
        if it has a state already.
    hash_of : mapping of type to callable
        For keys of tables that are neither texts nor numbers: gets the key, and returns its hash, or raises.
    """

    __slots__ = (
        "_charge",
        "_charge_to",
        "_fill",
        "_find",
        "_hash_of",
        "_hashes",
        "_kinds",
        "_outer",
        "_same",
        "data",
        "memo",
        "stack",
    )

    def __init__(
        self, data: bytes, find: Find, fill: Mapping[type, Fill], hash_of: Mapping[type, Callable[[Any], int]]
    ) -> None:
        self.data = data
        self.stack: list[Any] = []
        self.memo: list[Any] = []
        self._outer: list[list[Any]] = []
        self._find = find
        self._fill = fill
        self._hash_of = hash_of
        self._charge = -FREE
        self._charge_to = 0
        self._hashes: set[int] = set()
        self._same: dict[int, int] = {}
        self._kinds = Kinds(data, self.memo)

    def run(self) -> tuple[Any, int]:
        """Read up to the pickle's end.

        Returns
        -------
        object
        position : int
            Where the pickle ends.

        Raises
        ------
        MetadataError
            If it is damaged, or holds something that does not belong into metadata.
        """
        try:
            return self._run()
        except (IndexError, TypeError, ValueError, struct.error):  # what is not well formed runs into one of these
            raise MetadataError("the metadata is damaged: its pickle is cut, or not well formed") from None

    def _run(self) -> tuple[Any, int]:
        data, memo, stack, steps = self.data, self.memo, self.stack, _STEPS
        if not (data[0] == _PROTO and 2 <= data[1] <= 5):
            raise MetadataError("the metadata is no pickle of protocol 2 to 5: it is damaged, or no metadata")
        position = 2
        while True:
            code = data[position]
            position += 1
            # those that make up most of a pickle stand here; a function for each takes twice the time
            if code == _MEMOIZE:
                memo.append(stack[-1])
            elif code == _LONG_BINGET:
                stack.append(
                    memo[data[position] | data[position + 1] << 8 | data[position + 2] << 16 | data[position + 3] << 24]
                )
                position += 4
            elif code == _BINGET:
                stack.append(memo[data[position]])
                position += 1
            elif code == _BININT2:
                stack.append(data[position] | data[position + 1] << 8)
                position += 2
            elif code == _BININT1:
                stack.append(data[position])
                position += 1
            elif code == _EMPTY_TUPLE:
                end = self._record(position - 1) if data.startswith(_MAKE, position) else 0
                if end:
                    position = end
                else:
                    stack.append(())
            elif code == _STOP:
                break
            else:
                position = steps[code](self, position)
                stack = self.stack
        if len(stack) != 1 or self._outer:
            raise MetadataError("the metadata is damaged: its pickle ends in the middle of something")
        return stack[0], position

    def _record(self, position: int) -> int:
        """Read a whole instance, from the arguments of its name to its state, if it is one of many alike and nothing
        but its content could be wrong. Returns where it ends, or 0: then nothing was done.
        """
        name = self.stack[-1]
        if type(name) is not Name or name.fill is None:
            return 0
        for layout in self._kinds.layouts.get(name, ()):
            match = layout.match(self.data, position)
            if match is not None:
                break
        else:
            self._kinds.missed(name, position)
            return 0
        if len(self._outer) + layout.marks > 2 * MAX_DEPTH:
            return 0
        before, memorised = self._charge, len(self.memo)
        try:
            values, charge = layout.values(match.groups())
            self._charge_to = position
            self._pay_early(charge)
            self.stack[-1] = layout.read(values, self.memo, self._pay_early)
        except (IndexError, KeyError, Impossible):
            self._charge = before
            del self.memo[memorised:]
            return 0
        return match.end()

    def _pay_early(self, charge: int) -> None:
        """What is not too much before the first of several opcodes is not too much at any of them."""
        self._charge += charge
        if self._charge > self._charge_to:
            raise Impossible

    # -- one opcode each: from the position behind the opcode to the position of the next ---------------

    def _unknown(self, position: int) -> NoReturn:
        code = self.data[position - 1]
        raise MetadataError(
            f"the metadata's pickle has the opcode {code:#04x} at {position - 1}, which no metadata needs: it is "
            "damaged or hostile; it was refused"
        )

    def _frame(self, position: int) -> int:
        if int.from_bytes(self._bytes(position, 8), "little") > len(self.data) - position - 8:
            raise IndexError
        return position + 8

    def _mark(self, position: int) -> int:
        if len(self._outer) >= 2 * MAX_DEPTH:
            raise MetadataError(f"the metadata is nested deeper than {MAX_DEPTH} levels; it was refused")
        self._outer.append(self.stack)
        self.stack = []
        return position

    def _to_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self._outer.pop()
        return items

    def _pay(self, position: int, charge: int) -> None:
        self._charge += charge
        if self._charge > position:
            raise MetadataError(
                "the metadata would take far more memory than its size explains: it is hostile; it was refused"
            )

    def _bytes(self, position: int, size: int) -> bytes:
        if size > len(self.data) - position:
            raise IndexError
        return self.data[position : position + size]

    def _put(self, position: int, size: int) -> int:
        if int.from_bytes(self._bytes(position, size), "little") != len(self.memo):
            raise MetadataError("the metadata numbers its objects as no pickling does: it is damaged or hostile")
        self.memo.append(self.stack[-1])
        return position + size

    def _binput(self, position: int) -> int:
        return self._put(position, 1)

    def _long_binput(self, position: int) -> int:
        return self._put(position, 4)

    def _none(self, position: int) -> int:
        self.stack.append(None)
        return position

    def _true(self, position: int) -> int:
        self.stack.append(True)
        return position

    def _false(self, position: int) -> int:
        self.stack.append(False)
        return position

    def _binint(self, position: int) -> int:
        self.stack.append(int.from_bytes(self._bytes(position, 4), "little", signed=True))
        return position + 4

    def _long1(self, position: int) -> int:
        size = self.data[position]
        if size > 9:
            raise MetadataError("the metadata holds a number of more than 64 bits; it was refused")
        value = int.from_bytes(self._bytes(position + 1, size), "little", signed=True)
        if not -MAX_MAGNITUDE <= value < MAX_MAGNITUDE:
            raise MetadataError("the metadata holds a number of more than 64 bits; it was refused")
        self.stack.append(value)
        return position + 1 + size

    def _binfloat(self, position: int) -> int:
        self.stack.append(_FLOAT.unpack_from(self.data, position)[0])
        return position + 8

    def _text(self, position: int, size: int) -> int:
        self.stack.append(str(self._bytes(position, size), "utf-8", "surrogatepass"))
        return position + size

    def _short_text(self, position: int) -> int:
        return self._text(position + 1, self.data[position])

    def _long_text(self, position: int) -> int:
        return self._text(position + 4, int.from_bytes(self._bytes(position, 4), "little"))

    def _short_bytes(self, position: int) -> int:
        size = self.data[position]
        self.stack.append(self._bytes(position + 1, size))
        return position + 1 + size

    def _long_bytes(self, position: int) -> int:
        size = int.from_bytes(self._bytes(position, 4), "little")
        self.stack.append(self._bytes(position + 4, size))
        return position + 4 + size

    def _tuple1(self, position: int) -> int:
        self._pay(position, TUPLE_CHARGE)
        stack = self.stack
        stack[-1] = (stack[-1],)
        return position

    def _tuple2(self, position: int) -> int:
        self._pay(position, TUPLE_CHARGE)
        stack = self.stack
        last = stack.pop()
        stack[-1] = (stack[-1], last)
        return position

    def _tuple3(self, position: int) -> int:
        self._pay(position, TUPLE_CHARGE)
        stack = self.stack
        last, middle = stack.pop(), stack.pop()
        stack[-1] = (stack[-1], middle, last)
        return position

    def _tuple(self, position: int) -> int:
        self._pay(position, TUPLE_CHARGE)
        items = self._to_mark()
        self.stack.append(tuple(items))
        return position

    def _empty_list(self, position: int) -> int:
        self._pay(position, OBJECT_CHARGE)
        self.stack.append([])
        return position

    def _empty_dict(self, position: int) -> int:
        self._pay(position, OBJECT_CHARGE)
        self.stack.append({})
        return position

    def _append(self, position: int) -> int:
        item = self.stack.pop()
        self._list().append(item)
        return position

    def _appends(self, position: int) -> int:
        items = self._to_mark()
        self._list().extend(items)
        return position

    def _list(self) -> list[Any]:
        target = self.stack[-1]
        if type(target) is not list:
            raise MetadataError("the metadata appends to something that is no list: it is damaged or hostile")
        return target

    def _setitem(self, position: int) -> int:
        value = self.stack.pop()
        self._set([self.stack.pop(), value])
        return position

    def _setitems(self, position: int) -> int:
        self._set(self._to_mark())
        return position

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if (type(target) is not dict and type(target) is not OrderedDict) or len(items) % 2:
            raise MetadataError("the metadata fills something that is no table: it is damaged or hostile")
        keys = items[::2]
        for key in keys:
            if type(key) is not str:
                self._check(key)
        wanted = len(target) + len(keys)
        # by identity first: to find out that two long texts are equal takes their length, and a few bytes ask for it
        if len(set(map(id, keys))) == len(keys):
            target.update(zip(keys, items[1::2], strict=True))
        if len(target) != wanted:
            raise MetadataError("the metadata has a key twice in one table: it is damaged or hostile; it was refused")

    def _check(self, key: Any) -> None:
        if type(key) in _KEY_TYPES:
            return
        hash_of = self._hash_of.get(type(key))
        if hash_of is None:
            raise MetadataError(f"the metadata has a {type(key).__name__} for a key; it was refused")
        found = hash_of(key)
        if found in self._hashes:
            self._same[found] = self._same.get(found, 1) + 1
            if self._same[found] > MAX_SAME_HASH:
                raise MetadataError("the metadata's keys were chosen to share one hash: it is hostile; it was refused")
        self._hashes.add(found)

    def _global(self, position: int) -> int:
        middle = self.data.index(b"\n", position, position + MAX_NAME)
        end = self.data.index(b"\n", middle + 1, middle + MAX_NAME)
        module, name = str(self.data[position:middle], "utf-8"), str(self.data[middle + 1 : end], "utf-8")
        self.stack.append(self._find(module, name))
        return end + 1

    def _stack_global(self, position: int) -> int:
        name = self.stack.pop()
        module = self.stack.pop()
        if type(name) is not str or type(module) is not str:
            raise MetadataError("the metadata names something by what is no name: it is damaged or hostile")
        self.stack.append(self._find(module, name))
        return position

    def _newobj(self, position: int) -> int:
        self._pay(position, OBJECT_CHARGE)
        stack = self.stack
        arguments = stack.pop()
        name = stack[-1]
        if type(name) is not Name or name.make is None or arguments != ():
            raise _misused(name)
        stack[-1] = name.make()
        return position

    def _reduce(self, position: int) -> int:
        self._pay(position, TUPLE_CHARGE)
        stack = self.stack
        arguments = stack.pop()
        name = stack[-1]
        if type(name) is not Name or name.call is None or type(arguments) is not tuple:
            raise _misused(name)
        stack[-1] = name.call(partial(self._pay, position), *arguments)
        return position

    def _build(self, position: int) -> int:
        state = self.stack.pop()
        target = self.stack[-1]
        fill = self._fill.get(type(target))
        if fill is None:
            what = target.text if type(target) is Name else f"a {type(target).__name__}"
            raise MetadataError(f"the metadata sets something on {what}; it was refused and nothing was run")
        fill(target, state, partial(self._pay, position))
        return position


def _misused(name: object) -> MetadataError:
    what = name.text if type(name) is Name else f"a {type(name).__name__}"
    return MetadataError(f"the metadata makes something from {what} as no pickling does; it was refused")


# not tuples: a few bytes make one whose hash never ends, or thousands that share one hash
_KEY_TYPES = frozenset({type(None), bool, int, float, str, bytes})

_PROTO, _STOP, _MEMOIZE = 0x80, ord("."), 0x94
_BINGET, _LONG_BINGET = ord("h"), ord("j")
_BININT1, _BININT2 = ord("K"), ord("M")
_EMPTY_TUPLE = ord(")")
_MAKE = b"\x81\x94"  # an instance, memorised

_KNOWN: dict[int, Callable[[Machine, int], int]] = {
    ord("("): Machine._mark,
    ord("q"): Machine._binput,
    ord("r"): Machine._long_binput,
    ord("N"): Machine._none,
    0x88: Machine._true,
    0x89: Machine._false,
    ord("J"): Machine._binint,
    0x8A: Machine._long1,
    ord("G"): Machine._binfloat,
    ord("X"): Machine._long_text,
    0x8C: Machine._short_text,
    ord("B"): Machine._long_bytes,
    ord("C"): Machine._short_bytes,
    0x85: Machine._tuple1,
    0x86: Machine._tuple2,
    0x87: Machine._tuple3,
    ord("t"): Machine._tuple,
    ord("]"): Machine._empty_list,
    ord("}"): Machine._empty_dict,
    ord("a"): Machine._append,
    ord("e"): Machine._appends,
    ord("s"): Machine._setitem,
    ord("u"): Machine._setitems,
    ord("c"): Machine._global,
    0x93: Machine._stack_global,
    0x81: Machine._newobj,
    ord("R"): Machine._reduce,
    ord("b"): Machine._build,
    0x95: Machine._frame,
}
_STEPS = [_KNOWN.get(code, Machine._unknown) for code in range(256)]
