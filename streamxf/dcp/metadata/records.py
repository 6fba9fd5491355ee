"""What stands in a pickle a hundred thousand times: read in one step instead of twenty-five.

Metadata of many shards is made of few kinds of instances, and pickling writes all of a kind with the same opcodes; only
numbers differ, and which memorised objects are fetched. Once a kind was read often enough opcode by opcode, a regular
expression is made of its opcodes, and matches the next ones.

This is a shortcut and decides nothing. Where an expression matches, what the opcodes say is done: the same values, the
same charges, the same entries of the memo, the same functions that fill instances in. Where it does not match, or
anything but these functions could refuse something on the way, nothing was done, and the opcodes are read one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from streamxf.dcp.metadata.limits import MAX_DEPTH, MAX_NDIM
from streamxf.dcp.metadata.names import OBJECT_CHARGE, TUPLE_CHARGE, Fill, Name, Pay
from streamxf.errors import MetadataError

LEARN_AFTER = 48
"""Instances of a class that are read opcode by opcode first: to make an expression takes as long as they do."""

MAX_LAYOUTS = 4
"""Expressions for one class: it may have optional attributes, and lists of several lengths."""

MAX_VALUES = 64
"""Values in one expression."""

MAX_PIECES = 16 * MAX_VALUES
"""Pieces of one expression, those with values and those without: to compile one takes hundreds of times its bytes."""

MAX_SHAPES = 4096
"""Shapes that are remembered: many chunks have the same."""

_REF = rb"(?:h.|j.{4})"
_INT = rb"(?:K.|M..|J.{4}|\x8a(?:\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}))"
_INTS = rb"(?:\)|%b\x85\x94|%b\x86\x94|%b\x87\x94|\(%b{4,%d}+t\x94)" % (_INT, _INT * 2, _INT * 3, _INT, MAX_NDIM)
_CONSTANT = rb"[N\x88\x89]"
_ONE_REF, _ONE_INT, _ALL_INTS = (re.compile(expression, re.DOTALL) for expression in (_REF, _INT, _INTS))
_CONSTANTS = {b"N": None, b"\x88": True, b"\x89": False}
_BININT, _BININT1, _BININT2 = ord("J"), ord("K"), ord("M")

_MAKE, _TABLE, _FILL = b")\x81\x94", b"}\x94(", b"ub"  # the table that is an instance's state
_MARK, _TUPLE_FILL = b"(", b"t\x94b"  # the tuple that is one
_CALL = b"\x85\x94R\x94"
_LIST, _APPEND, _APPENDS = b"]\x94", b"a", b"e"

Values = list[Any]
Read = Callable[[Values, list[Any], Pay], Any]
"""Makes a value of what the groups of an expression hold, and adds to the memo."""


class Impossible(Exception):
    """What stands here cannot be read in one step."""


class Layout:
    """An expression for all opcodes of an instance from the arguments of its name on, and what to make of it."""

    __slots__ = ("_charge", "_fixed", "_groups", "_shapes", "marks", "match", "read")

    def __init__(self, draft: _Draft, read: Read) -> None:
        self.match = re.compile(b"".join(draft.expression), re.DOTALL).match
        self.marks = draft.marks
        self.read = read
        self._groups = draft.groups
        self._shapes = draft.shapes
        self._charge = draft.charge

    def values(self, groups: tuple[bytes, ...]) -> tuple[Values, int]:
        """What the groups of a match hold, and what the instance is charged.

        Raises
        ------
        IndexError
            If an object is fetched that is not memorised.
        Impossible
            If a shape cannot be made.
        """
        values = [reader(group) for reader, group in zip(self._groups, groups, strict=True)]
        charge = self._charge
        for place in self._shapes:
            charge += values[place][2]
        return values, charge


class _Draft:
    """An expression that is being made, as far as it has got."""

    def __init__(self) -> None:
        self.expression: list[bytes] = []
        self.groups: list[Callable[[bytes], Any]] = []
        self.shapes: list[int] = []
        self.charge = 0
        self.marks = 0

    def add(self, expression: bytes) -> None:
        if len(self.expression) == MAX_PIECES:
            raise Impossible
        self.expression.append(expression)

    def group(self, expression: bytes, reader: Callable[[bytes], Any]) -> int:
        if len(self.groups) == MAX_VALUES:
            raise Impossible
        self.add(b"(%b)" % expression)
        self.groups.append(reader)
        return len(self.groups) - 1


class Kinds:
    """The layouts of one pickle.

    Parameters
    ----------
    data : bytes
        The pickle.
    memo : list
        The machine's. What stands in it stays.
    """

    __slots__ = ("_at", "_counts", "_data", "_memo", "_shapes", "layouts")

    def __init__(self, data: bytes, memo: list[Any]) -> None:
        self._data = data
        self._memo = memo
        self._at = 0
        self._counts: dict[Name, int] = {}
        self._shapes: dict[Name, Callable[[bytes], Any]] = {}
        self.layouts: dict[Name, list[Layout]] = {}

    def missed(self, name: Name, position: int) -> None:
        """Say that no layout matches the instance of `name` that begins at `position`, with empty arguments."""
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count % LEARN_AFTER
        known = self.layouts.get(name, [])
        if count < LEARN_AFTER or len(known) >= MAX_LAYOUTS:
            return
        draft = _Draft()
        self._at = position
        try:
            layout = Layout(draft, self._instance(draft, name, 1))
        except (IndexError, Impossible):  # it is cut, or not like others, or fetches what it has made itself
            return
        self.layouts[name] = [layout, *known]

    # -- from opcodes to an expression: each begins at `_at`, and leaves it behind what it has read -----------------

    def _instance(self, draft: _Draft, name: Name, marks: int) -> Read:
        self._literal(draft, _MAKE)
        draft.charge += OBJECT_CHARGE
        draft.marks = max(draft.marks, marks)
        make, fill = name.make, name.fill
        if make is None or fill is None or marks > 2 * MAX_DEPTH:  # more of these the machine refuses
            raise Impossible
        if self._optional(draft, _MARK):
            draft.charge += TUPLE_CHARGE
            first = len(draft.groups)
            while not self._optional(draft, _TUPLE_FILL):
                self._plain(draft)
            return _with_tuple(make, fill, slice(first, len(draft.groups)))
        self._literal(draft, _TABLE)
        draft.charge += OBJECT_CHARGE
        parts: dict[str, int | Read] = {}
        while not self._optional(draft, _FILL):
            key = self._fetch(self._literal_ref(draft))
            if type(key) is not str or key in parts or key not in name.fields:
                raise Impossible
            parts[key] = self._value(draft, marks)
        return _with_table(make, fill, list(parts.items()), frozenset(draft.shapes))

    def _value(self, draft: _Draft, marks: int) -> int | Read:
        if self._optional(draft, _LIST):
            draft.charge += OBJECT_CHARGE
            return self._list(draft, marks)
        found = _ONE_REF.match(self._data, self._at)
        named = self._fetch(found[0]) if found is not None else None
        if type(named) is not Name:
            return self._plain(draft)
        self._literal_ref(draft)
        if named.make is not None:
            return self._instance(draft, named, marks + 1)
        shape = _ALL_INTS.match(self._data, self._at)
        if shape is None or not named.pure:
            raise Impossible
        draft.marks = max(draft.marks, marks + 1)
        draft.shapes.append(draft.group(_INTS, self._shape_of(named)))
        self._at = shape.end()
        self._literal(draft, _CALL)
        return draft.shapes[-1]

    def _list(self, draft: _Draft, marks: int) -> Read:
        several = self._optional(draft, _MARK)
        if not several and not _ONE_REF.match(self._data, self._at):
            raise Impossible
        elements: list[Read] = []
        while not (several and self._optional(draft, _APPENDS)):
            named = self._fetch(self._literal_ref(draft))
            if type(named) is not Name:
                raise Impossible
            elements.append(self._instance(draft, named, marks + 1 + several))
            if not several:
                self._literal(draft, _APPEND)
                break
        return _list_of(elements)

    def _plain(self, draft: _Draft) -> int:
        data, at = self._data, self._at
        for expression, one, reader in (
            (_REF, _ONE_REF, self._fetch),
            (_INT, _ONE_INT, number),
        ):
            found = one.match(data, at)
            if found is not None:
                self._at = found.end()
                return draft.group(expression, reader)
        if data[at : at + 1] not in _CONSTANTS:
            raise Impossible
        self._at += 1
        return draft.group(_CONSTANT, _CONSTANTS.__getitem__)

    def _literal(self, draft: _Draft, wanted: bytes) -> None:
        if not self._optional(draft, wanted):
            raise Impossible

    def _optional(self, draft: _Draft, wanted: bytes) -> bool:
        if not self._data.startswith(wanted, self._at):
            return False
        self._at += len(wanted)
        draft.add(re.escape(wanted))
        return True

    def _literal_ref(self, draft: _Draft) -> bytes:
        found = _ONE_REF.match(self._data, self._at)
        if found is None:
            raise Impossible
        self._literal(draft, found[0])
        return found[0]

    # -- from groups to values ---------------------------------------------------------------------------------------

    def _fetch(self, ref: bytes) -> Any:
        return self._memo[int.from_bytes(ref[1:], "little")]

    def _shape_of(self, name: Name) -> Callable[[bytes], Any]:
        """From the opcodes of numbers and of their tuple to what a call of `name` leaves: what is memorised, the result
        and the charge. One for all layouts.
        """
        known: dict[bytes, tuple[tuple[Any, ...], Any, int]] = {}
        call = name.call
        if call is None:
            raise Impossible

        def shape(opcodes: bytes) -> tuple[tuple[Any, ...], Any, int]:
            found = known.get(opcodes)
            if found is not None:
                return found
            numbers = tuple(map(number, _ONE_INT.findall(opcodes)))
            paid: list[int] = []
            try:
                result = call(paid.append, numbers)
            except MetadataError:  # it is raised again when the opcodes are read one by one
                raise Impossible from None
            # the empty tuple has an opcode of its own, and is neither memorised nor charged
            memorised = ((numbers,), result) if not numbers else (numbers, (numbers,), result)
            found = memorised, result, TUPLE_CHARGE * len(memorised) + sum(paid)
            if len(known) < MAX_SHAPES:
                known[opcodes] = found
            return found

        return self._shapes.setdefault(name, shape)


def number(opcode: bytes) -> int:
    """What BININT, BININT1, BININT2 or LONG1 pushes."""
    code = opcode[0]
    if code == _BININT1:
        return opcode[1]
    if code == _BININT2:
        return opcode[1] | opcode[2] << 8
    return int.from_bytes(opcode[1:] if code == _BININT else opcode[2:], "little", signed=True)


def _with_tuple(make: Callable[[], object], fill: Fill, part: slice) -> Read:
    def read(values: Values, memo: list[Any], pay: Pay) -> object:
        target, state = make(), tuple(values[part])
        memo += target, state
        fill(target, state, pay)
        return target

    return read


def _with_table(
    make: Callable[[], object], fill: Fill, parts: list[tuple[str, int | Read]], shapes: frozenset[int]
) -> Read:
    keys = [key for key, _ in parts]
    places = [part for _, part in parts if isinstance(part, int) and part not in shapes]
    if len(places) == len(parts):
        return _with_plain_table(make, fill, keys, slice(places[0], places[-1] + 1) if places else slice(0))
    steps: list[tuple[str, int, bool, Read | None]] = [
        (key, part, part in shapes, None) if isinstance(part, int) else (key, -1, False, part) for key, part in parts
    ]

    def read(values: Values, memo: list[Any], pay: Pay) -> object:
        target = make()
        state: dict[str, Any] = {}
        memo += target, state
        for key, place, is_shape, nested in steps:
            if is_shape:
                memorised, state[key], _ = values[place]
                memo += memorised
            else:
                state[key] = values[place] if nested is None else nested(values, memo, pay)
        fill(target, state, pay)
        return target

    return read


def _with_plain_table(make: Callable[[], object], fill: Fill, keys: list[str], part: slice) -> Read:
    def read(values: Values, memo: list[Any], pay: Pay) -> object:
        target, state = make(), dict(zip(keys, values[part], strict=True))
        memo += target, state
        fill(target, state, pay)
        return target

    return read


def _list_of(elements: list[Read]) -> Read:
    def read(values: Values, memo: list[Any], pay: Pay) -> list[Any]:
        made: list[Any] = []
        memo.append(made)
        for element in elements:
            made.append(element(values, memo, pay))
        return made

    return read
