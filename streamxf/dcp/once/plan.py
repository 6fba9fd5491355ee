"""Who reads what: the coordinator's part of a load that reads once.

A chunk that several ranks need a part of is cut into runs of a few mebibytes. Small runs that the same ranks need are
put together. Each such `Unit` has one owner among the ranks that need it, who reads it and sends it to the others.
Ranks without keys own nothing: a run that nobody else needs is owned by a rank that needs another one of the chunk.

Ranks that share something belong to one group, in which everybody is connected to everybody, so a group has at most
`GROUP` ranks; of more ranks that need the same, one of each group reads it. Units are sent in rounds. A rank takes part
in a round when its part of the one before is over, so a round bounds what is in flight, and nobody waits in a circle.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from streamxf.checkpoint.elements import Selection
from streamxf.errors import KeyMissingError
from streamxf.format.items import ITEMSIZES, Place
from streamxf.wording import some

UNIT = 4 * 2**20
"""Bytes, decoded, of a large chunk; a block that is larger is a unit. Of small ones, what is put together."""
ROUND = 64 * 2**20
GROUP = 64
LEAST_SAVED = 0.05  # of the stored bytes that all ranks would read by themselves; with less, they do
_FEW = 16  # ranks; of more, each has less at a time
_MOST_PARTS = 1024

Ints = tuple[int, ...]
Ranks = tuple[int, ...]


@dataclass(eq=False, slots=True)
class Need:
    """What some ranks need of a chunk, all of them the same."""

    selection: Selection
    ranks: Ranks


@dataclass(eq=False, slots=True)
class SharedChunk:
    """A chunk of a tensor, at `offset` in that, of which several ranks need some part; or an object's bytes, which have
    no `dtype`: as they are `stored`, unless a rank without keys needs them. `lead` bytes come first in its blocks.
    """

    name: str
    offset: Ints
    shape: Ints
    dtype: str
    needs: tuple[Need, ...]
    stored: bool = False
    lead: int = 0

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return ITEMSIZES[self.dtype] if self.dtype else 1

    def needs_of(self, rank: int) -> list[Need]:
        return [need for need in self.needs if rank in need.ranks]


class ChunkRun(NamedTuple):
    """A run of a chunk's elements."""

    shard: SharedChunk
    start: int
    stop: int

    @property
    def size(self) -> int:
        return (self.stop - self.start) * self.shard.itemsize


class Unit(NamedTuple):
    """What is read at a time, by `owner`, for all of `ranks`, which include it."""

    number: int
    round: int
    owner: int
    ranks: Ranks
    parts: tuple[ChunkRun, ...]


@dataclass(slots=True)
class Assignment:
    """One rank's part in a load that reads once.

    - `rank`: whose it is. `ranks`: those of its group. `tokens`: under which they announce themselves.
    - `nonce`: of this load and group, for names in the store.
    - `units`: that this rank reads or receives, round by round.
    """

    rank: int
    nonce: str
    ranks: Ranks
    tokens: tuple[str, ...]
    units: tuple[Unit, ...]


def assign(
    shards: Iterable[tuple[SharedChunk, Place]],
    hosts: Sequence[str],
    tokens: Sequence[str],
    alone: Sequence[float],
    block: int = 1,
    keyless: Collection[int] = (),
) -> dict[int, Assignment]:
    """Each rank's share, where it has one; none at all if too little is saved, unless some ranks are `keyless`. Raises
    KeyMissingError if nobody with keys can read what such a rank needs.

    - `shards`: with their places.
    - `hosts`, `tokens`, `alone`: of each rank; the last are the stored bytes that it reads besides.
    - `block`: bytes; the size of blocks.
    """
    unit = max(block, (UNIT if len(hosts) <= _FEW else UNIT // 4) // block * block)
    pieces: dict[Ranks, list[tuple[ChunkRun, float]]] = {}
    for shard, place in sorted(shards, key=lambda each: each[1][:2]):
        for part, ranks in _runs(shard, unit, keyless):
            pieces.setdefault(ranks, []).append((part, place.share * (part.stop - part.start) / shard.count))
    sizes = {ranks: sum(stored for _, stored in found) for ranks, found in pieces.items()}
    groups, loads = _groups(sizes), dict(enumerate(alone))
    units: list[tuple[int, Ranks, tuple[ChunkRun, ...]]] = []
    saved = 0.0
    for ranks, found in pieces.items():
        for group in {groups[rank]: None for rank in ranks}:
            members = tuple(rank for rank in ranks if groups[rank] == group)
            saved += sizes[ranks] * (len(members) - 1)
            owners = tuple(rank for rank in members if rank not in keyless)
            if not owners:
                name, whom = found[0][0].shard.name, some(map(str, members), most=8)
                raise KeyMissingError(f"ranks {whom} cannot decrypt this, and no rank with a key loads it", item=name)
            most = 0 if len(members) == 1 else unit
            units += [(owner, members, parts) for owner, parts in _owned(found, owners, hosts, loads, most)]
    if not keyless and saved < max(
        1, LEAST_SAVED * (sum(alone) + sum(size * len(ranks) for ranks, size in sizes.items()))
    ):
        return {}
    return _shares(units, groups, tokens, unit)


def _runs(shard: SharedChunk, unit: int, keyless: Collection[int]) -> Iterator[tuple[ChunkRun, Ranks]]:
    """Cut a chunk where blocks end; each run comes with the ranks that need something of it, and there are some. If all
    of them are `keyless`, one that needs another part comes with them.
    """
    step = max(1, unit // shard.itemsize)
    able = [rank for need in shard.needs for rank in need.ranks if rank not in keyless]
    first = step - shard.lead // shard.itemsize % step
    for start, stop in pairwise((0, *range(first, shard.count, step), shard.count)):
        found = [need.ranks for need in shard.needs if need.selection.count(start, stop)]
        if found and able and all(rank in keyless for ranks in found for rank in ranks):
            found.append((min(able),))
        if found:
            yield ChunkRun(shard, start, stop), found[0] if len(found) == 1 else tuple(sorted(set().union(*found)))


def _groups(sizes: Mapping[Ranks, float]) -> dict[int, int]:
    """The group of each rank, as one of its ranks: those that share most first, sets that part anyway last."""
    groups: dict[int, set[int]] = {}
    for ranks in sorted(sizes, key=lambda ranks: (len(ranks) > GROUP, -sizes[ranks] * (len(ranks) - 1))):
        most = GROUP if len(ranks) <= GROUP else -(-len(ranks) // -(-len(ranks) // GROUP))
        last: set[int] = set()
        for rank in ranks:
            group = groups.setdefault(rank, {rank})
            if last and group is not last and len(last) + len(group) <= most:
                last |= group
                groups.update(dict.fromkeys(group, last))
            else:
                last = group
    return {rank: min(group) for rank, group in groups.items()}


def _owned(
    found: Iterable[tuple[ChunkRun, float]], owners: Ranks, hosts: Sequence[str], loads: dict[int, float], most: int
) -> Iterator[tuple[int, tuple[ChunkRun, ...]]]:
    """Cut what some ranks need into a stretch for each of the `owners` among them, so that each reads what follows one
    another, and in the end about as much as the others: first each host, then each rank of it.

    - `loads`: what each rank reads already; what comes is added.
    - `most`: bytes up to which parts are put together.
    """
    units = [*_joined(found, most)]
    left, at = sum(stored for _, stored in units), 0
    by_host: dict[str, list[int]] = {}
    for rank in owners:
        by_host.setdefault(hosts[rank], []).append(rank)
    of_hosts = [sum(load for rank, load in loads.items() if hosts[rank] == host) for host in by_host]
    for number, ranks in enumerate(by_host.values()):
        goal = first_share(of_hosts[number:], left)
        for place, rank in enumerate(ranks):
            own = first_share([loads[other] for other in ranks[place:]], goal)
            is_last = rank == ranks[-1] and number == len(by_host) - 1
            taken = 0.0
            while at < len(units) and (is_last or taken + units[at][1] / 2 < own):
                yield rank, units[at][0]
                taken, at = taken + units[at][1], at + 1
            loads[rank] += taken
            goal, left = goal - taken, left - taken


def first_share(loads: Sequence[float], total: float) -> float:
    """What the first of `loads` gets of `total`, where all of it goes to the lowest, so that they become equal."""
    height, below = 0.0, 0.0
    for count, load in enumerate(sorted(loads)):
        if count and load >= height:
            break
        below += load
        height = (total + below) / (count + 1)
    return max(0.0, height - loads[0])


def _joined(found: Iterable[tuple[ChunkRun, float]], most: int) -> Iterator[tuple[tuple[ChunkRun, ...], float]]:
    """Put parts together that have at most so many bytes."""
    parts: list[ChunkRun] = []
    size, stored = 0, 0.0
    for part, more in found:
        if parts and (size + part.size > most or len(parts) == _MOST_PARTS):
            yield tuple(parts), stored
            parts, size, stored = [], 0, 0.0
        parts.append(part)
        size, stored = size + part.size, stored + more
    if parts:
        yield tuple(parts), stored


def _shares(
    units: Iterable[tuple[int, Ranks, tuple[ChunkRun, ...]]],
    groups: Mapping[int, int],
    tokens: Sequence[str],
    unit: int,
) -> dict[int, Assignment]:
    read = dict.fromkeys(groups, 0)
    mine: dict[int, list[Unit]] = {rank: [] for rank in groups}
    shared: dict[int, set[SharedChunk]] = {rank: set() for rank in groups}
    sizes = Counter(groups.values())
    for number, (owner, ranks, parts) in enumerate(units):
        turn = read[owner] // max(unit, ROUND // sizes[groups[owner]])
        read[owner] += sum(part.size for part in parts)
        for rank in ranks:
            mine[rank].append(Unit(number, turn, owner, ranks, parts))
            if len(ranks) > 1:
                shared[rank].update(part.shard for part in parts)
    nonces = {group: secrets.token_hex(8) for group in sizes}
    made = {}
    for rank in (rank for rank in groups if shared[rank]):
        group = tuple(sorted(other for other in groups if shared[other] and groups[other] == groups[rank]))
        # what it would read of a chunk that it shares with nobody, it reads with the rest
        chosen = [unit for unit in mine[rank] if shared[rank].issuperset(part.shard for part in unit.parts)]
        chosen.sort(key=lambda unit: (unit.round, unit.number))
        made[rank] = Assignment(rank, nonces[groups[rank]], group, tuple(tokens[each] for each in group), tuple(chosen))
    return made
