"""Who reads what: every rank gets what it needs, one rank of a group reads each byte, and nobody waits in a circle."""

import math
from collections import Counter
from collections.abc import Collection
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf.checkpoint.elements import Selection
from streamxf.dcp.once import plan
from streamxf.dcp.once.plan import Assignment, Need, SharedChunk, assign, first_share
from streamxf.errors import KeyMissingError
from streamxf.format.items import Place

DTYPES = {"uint8": 1, "bfloat16": 2, "float32": 4, "complex128": 16}


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Selection:
    begins = [draw(st.integers(0, size - 1)) for size in shape]
    lengths = [draw(st.integers(1, size - begin)) for begin, size in zip(begins, shape, strict=True)]
    selection = Selection.of(shape, begins, lengths)
    assert selection is not None
    return selection


@st.composite
def shards(draw: st.DrawFn, ranks: int) -> tuple[SharedChunk, Place]:
    shape = tuple(draw(st.lists(st.integers(1, 9), max_size=3)))
    wanted = draw(st.lists(boxes(shape), min_size=1, max_size=4, unique_by=lambda each: each.box))
    needs = []
    for selection in wanted:
        who = draw(st.sets(st.integers(0, ranks - 1), min_size=1))
        needs.append(Need(selection, tuple(sorted(who))))
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    size = draw(st.integers(1, 4 * math.prod(shape) * DTYPES[dtype]))
    place = Place(draw(st.sampled_from("abc")), draw(st.integers(0, 10_000)), size, ())
    return SharedChunk(f"item {draw(st.integers(0, 99))}", (0,) * len(shape), shape, dtype, tuple(needs)), place


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[tuple[SharedChunk, Place]], list[str], int]:
    ranks = draw(st.integers(2, 7))
    found = draw(st.lists(shards(ranks), min_size=1, max_size=6))
    return found, draw(st.lists(st.sampled_from("xyz"), min_size=ranks, max_size=ranks)), draw(st.integers(1, 7))


def shares_of(
    found: list[tuple[SharedChunk, Place]], hosts: list[str], keyless: Collection[int] = (), **limits: int | float
) -> dict[int, Assignment]:
    tokens = [f"token {rank}" for rank in range(len(hosts))]
    with patch.multiple(plan, **{"UNIT": 32, "ROUND": 64, "LEAST_SAVED": 0, **limits}):
        return assign(found, hosts, tokens, [0.0] * len(hosts), keyless=keyless)


@given(loads())
def test_every_rank_gets_what_it_needs_from_one_that_needs_it_too(
    load: tuple[list[tuple[SharedChunk, Place]], list[str], int],
):
    found, hosts, most = load
    shares = shares_of(found, hosts, GROUP=most)
    for rank, share in shares.items():
        assert share.rank == rank
        assert rank in share.ranks
        assert len(share.ranks) <= max(most, 1)
        assert share.tokens == tuple(f"token {each}" for each in share.ranks)
        assert all(shares[other].nonce == share.nonce and shares[other].ranks == share.ranks for other in share.ranks)
        taken: dict[SharedChunk, np.ndarray] = {}
        for unit in share.units:
            assert rank in unit.ranks
            assert unit.owner in unit.ranks
            assert set(unit.ranks) <= set(share.ranks)
            for other in unit.ranks:
                assert unit in shares[other].units  # the same for all of them
            for part in unit.parts:
                taken.setdefault(part.shard, np.zeros(part.shard.count, int))[part.start : part.stop] += 1
        for shard, times in taken.items():
            assert times.max() == 1
            for need in shard.needs_of(rank):
                box = tuple(slice(*span) for span in need.selection.box)
                assert times.reshape(shard.shape)[box].min() == 1
    for nonce in {share.nonce for share in shares.values()}:
        owned = Counter(
            (part.shard, part.start)
            for rank, share in shares.items()
            if share.nonce == nonce
            for unit in share.units
            if unit.owner == rank
            for part in unit.parts
        )
        assert not owned or max(owned.values()) == 1  # each run has one reader in a group


@given(loads(), st.sets(st.integers(0, 6), min_size=1))
def test_ranks_without_keys_own_nothing_and_get_all(
    load: tuple[list[tuple[SharedChunk, Place]], list[str], int], keyless: set[int]
):
    found, hosts, _ = load
    if any(keyless.issuperset(rank for need in shard.needs for rank in need.ranks) for shard, _ in found):
        with pytest.raises(KeyMissingError):
            shares_of(found, hosts, keyless)
        return
    shares = shares_of(found, hosts, keyless, LEAST_SAVED=1)
    assert not {unit.owner for share in shares.values() for unit in share.units} & keyless
    for shard, _ in found:
        for need in shard.needs:
            for rank in keyless.intersection(need.ranks):
                parts = [part for unit in shares[rank].units for part in unit.parts if part.shard is shard]
                wanted = need.selection.count(0, shard.count)
                assert sum(need.selection.count(part.start, part.stop) for part in parts) == wanted
    for rank, share in shares.items():
        for unit in share.units:
            assert {rank, unit.owner} <= {*unit.ranks} <= {*share.ranks}


@given(loads())
def test_rounds_are_bounded_and_can_be_gone_through(load: tuple[list[tuple[SharedChunk, Place]], list[str], int]):
    """All messages of a round arrive once each of its ranks is at it; then there is always a rank that can go on."""
    found, hosts, most = load
    shares = shares_of(found, hosts, GROUP=most)
    for rank, share in shares.items():
        assert [unit.round for unit in share.units] == sorted(unit.round for unit in share.units)
        sizes = Counter[int]()
        for unit in share.units:
            if unit.owner == rank:
                sizes[unit.round] += sum(part.size for part in unit.parts)
        bound = max(32, 64 // len(share.ranks)) + 32  # what is begun within a round may end outside
        assert all(size <= bound for size in sizes.values())
    waiting = {rank: [*share.units] for rank, share in shares.items()}
    while any(waiting.values()):
        at = {rank: units[0].round for rank, units in waiting.items() if units}
        lowest = min(at.values())
        for rank, first in at.items():
            if first == lowest:
                for unit in [unit for unit in waiting[rank] if unit.round == lowest]:
                    # its owner and all others are at this round, or still before it
                    assert all(not waiting[other] or at[other] >= lowest for other in unit.ranks)
        for rank in at:
            waiting[rank] = [unit for unit in waiting[rank] if unit.round > lowest]


@pytest.mark.parametrize("hosts", ["aabb", "abab", "aaab", "abcd"])
def test_hosts_and_then_ranks_read_about_the_same(hosts: str):
    needs = (Need(Selection((1000,), ((0, 1000),), 0, 1000), (0, 1, 2, 3)),)
    found = [(SharedChunk(f"{n}", (0,), (1000,), "uint8", needs), Place("a", n, 1000, ())) for n in range(20)]
    shares = shares_of(found, [*hosts])
    read = Counter[int]()
    by_host = Counter[str]()
    for rank, share in shares.items():
        for unit in share.units:
            if unit.owner == rank:
                size = sum(part.size for part in unit.parts)
                read[rank], by_host[hosts[rank]] = read[rank] + size, by_host[hosts[rank]] + size
    assert sum(read.values()) == 20_000
    assert max(by_host.values()) - min(by_host.values()) <= 64
    for host in set(hosts):
        own = [read[rank] for rank in range(4) if hosts[rank] == host]
        assert max(own) - min(own) <= 64


def test_replicas_of_shards_make_groups_of_their_own():
    """With 16 replicas of 16 shards, and a small tensor that all have."""
    wanted = [tuple(range(number, 256, 16)) for number in range(16)]
    everything = Selection((1000,), ((0, 1000),), 0, 1000)
    found = [
        (SharedChunk(f"{n}", (0,), (1000,), "float32", (Need(everything, ranks),)), Place("a", n, 4000, ()))
        for n, ranks in enumerate(wanted)
    ]
    found.append(
        (SharedChunk("all", (0,), (1000,), "uint8", (Need(everything, tuple(range(256))),)), Place("b", 0, 1000, ()))
    )
    shares = shares_of(found, ["host"] * 256)
    assert {len(share.ranks) for share in shares.values()} <= {16, 32, 48, 64}
    for ranks in wanted:
        assert set(ranks) <= set(shares[ranks[0]].ranks)


def test_a_large_group_is_halved():
    needs = (Need(Selection((1000,), ((0, 1000),), 0, 1000), tuple(range(66))),)
    shares = shares_of([(SharedChunk("x", (0,), (1000,), "uint8", needs), Place("a", 0, 1000, ()))], ["host"] * 66)
    assert {len(share.ranks) for share in shares.values()} == {33}


@given(st.integers(2, 64), st.integers(1, 63))
def test_little_that_is_shared_does_not_count(count: int, sharing: int):
    needs = (Need(Selection((1000,), ((0, 1000),), 0, 1000), (0, 1)),)
    found = [(SharedChunk("x", (0,), (1000,), "uint8", needs), Place("a", 0, 1000, ()))]
    alone = [1000.0 * sharing / count] * count
    shares = assign(found, ["host"] * count, ["t"] * count, alone)
    assert bool(shares) == (0.05 * (2000 + sum(alone)) <= 1000)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8), st.floats(0, 1e6))
def test_what_is_added_makes_the_lowest_equal(before: list[float], total: float):
    added = [first_share([load, *before[:n], *before[n + 1 :]], total) for n, load in enumerate(before)]
    assert math.isclose(sum(added), total, abs_tol=1e-3)
    after = [load + more for load, more in zip(before, added, strict=True)]
    filled = [each for each, more in zip(after, added, strict=True) if more > 1e-6]
    assert not filled or max(filled) - min(filled) < 1e-3
    assert all(more > 0 or load >= max(filled, default=0) - 1e-3 for load, more in zip(before, added, strict=True))


@pytest.mark.parametrize(("lead", "block"), [(0, 8), (8, 8), (20, 16), (4, 24), (100, 32), (4, 40)])
def test_chunks_are_cut_where_blocks_end(lead: int, block: int):
    needs = (Need(Selection((1000,), ((0, 1000),), 0, 1000), (0, 1)),)
    chunk = SharedChunk("x", (0,), (1000,), "float32", needs, lead=lead)
    with patch.multiple(plan, UNIT=32, ROUND=64, LEAST_SAVED=0):
        shares = assign([(chunk, Place("a", 0, 4000, ()))], ["host"] * 2, ["t"] * 2, [0.0] * 2, block)
    parts = sorted((part.start, part.stop) for unit in shares[0].units for part in unit.parts)
    assert [parts[0][0], *(stop for _, stop in parts)] == [*(start for start, _ in parts), 1000]
    assert all((lead + 4 * start) % block == 0 for start, _ in parts[1:])
    assert {4 * (stop - start) for start, stop in parts[1:-1]} == {max(block, 32 // block * block)}
