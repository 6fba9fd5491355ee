"""Zstd frames of several blocks: the kernel reads two at a time where it can, and takes what libzstd takes.

It does so with neighbours that have four streams each, fastest with those of 128 KiB, or 64 KiB, of content. Whatever
stands between, and trees that change, must not confuse it.
"""

import random
from collections.abc import Sequence

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from streamxf.codecs.floatzip.kernel import compiled as kernel
from tests.altered import flipped
from tests.floatzip_blocks import Change, by_zstd, changed, changes

if kernel is None:
    pytest.skip("FloatZip's kernel was not built, or is not to be used", allow_module_level=True)

KIB = 1024
Block = tuple[int, int, bytes]  # kind, the size in its header, and what follows
RAW, RUN, COMPRESSED = range(3)


def compressed(data: bytes) -> bytes:
    out = np.empty(kernel.encode_bound(len(data)), np.uint8)
    return out[: kernel.compress(data, out)].tobytes()


def by_kernel(frame: bytes, size: int) -> bytes | None:
    out = np.empty(size, np.uint8)  # of just the size, which a sanitizer watches
    return out.tobytes() if kernel.decompress(np.frombuffer(frame, np.uint8).copy(), out) else None


def blocks_of(frame: bytes) -> list[Block]:
    """Of a frame whose head has the size of its content."""
    at = {0: 6, 1: 7, 2: 9}[frame[4] >> 6]
    found: list[Block] = []
    while True:
        word = int.from_bytes(frame[at : at + 3], "little")
        kind, size = word >> 1 & 3, word >> 3
        stored = 1 if kind == RUN else size
        found.append((kind, size, frame[at + 3 : at + 3 + stored]))
        at += 3 + stored
        if word & 1:
            assert at == len(frame)
            return found


def frame_of(blocks: Sequence[Block], size: int) -> bytes:
    frame = bytes.fromhex("28b52ffda0") + size.to_bytes(4, "little")
    for number, (kind, length, content) in enumerate(blocks, 1):
        frame += ((number == len(blocks)) | kind << 1 | length << 3).to_bytes(3, "little") + content
    return frame


def near(middle: int, spread: float, size: int) -> bytes:
    """Bytes with a bell curve, so that every middle and spread has another tree."""
    values = np.random.default_rng(middle).normal(middle, spread, size)
    return values.clip(0, 255).astype(np.uint8).tobytes()


def pieces() -> dict[str, tuple[Block, int]]:
    """Blocks by names, each with the size of its content. "tree" has one, which "same" and "rest" need."""
    found: dict[str, tuple[Block, int]] = {
        "raw 64": ((RAW, 64 * KIB, near(9, 9, 64 * KIB)), 64 * KIB),
        "raw 10": ((RAW, 10, bytes(10)), 10),
        "raw 0": ((RAW, 0, b""), 0),
        "run 128": ((RUN, 128 * KIB, b"r"), 128 * KIB),
        "run 10": ((RUN, 10, b"r"), 10),
    }
    for name, middle, spread in (("a", 100, 3.0), ("b", 60, 1.5)):
        for kib, parts in (
            (128, ["tree", "same", "same", "rest"]),
            (80, ["tree", "same", "same", "rest"]),
            (64, ["tree", "same"]),
        ):
            left = len(parts) * kib * KIB - 3 * ("rest" in parts)
            blocks = blocks_of(compressed(near(middle, spread, left)))
            assert [kind for kind, _, _ in blocks] == [COMPRESSED] * len(parts)
            for block, part in zip(blocks, parts, strict=True):
                found[f"{name}{kib} {part}"] = block, min(left, kib * KIB)
                left -= kib * KIB
    one = zstandard.ZstdCompressor(level=1, write_content_size=True).compress(near(30, 2.0, 200))
    found["one stream"] = (blocks_of(one)[0], 200)  # and a tree of its own
    return found


PIECES = pieces()
orders = st.lists(st.sampled_from(sorted(PIECES)), min_size=1, max_size=6)


def frame_with(order: Sequence[str]) -> tuple[bytes, int]:
    size = sum(PIECES[name][1] for name in order)
    return frame_of([PIECES[name][0] for name in order], size), size


def has_all_trees(order: Sequence[str]) -> bool:
    tree = ""
    for name in order:
        family, _, part = name.partition(" ")
        if part in ("tree", "stream"):
            tree = family
        elif part in ("same", "rest") and family != tree:
            return False
    return True


def streams_of(block: Block) -> tuple[bytes, list[bytes]]:
    """The streams of a large block that uses an earlier tree, and the head before them, without its sizes."""
    _, _, content = block
    assert content[0] & 15 == 15  # no tree, four streams, and a head of five bytes
    jumps = [int.from_bytes(content[at : at + 2], "little") for at in (5, 7, 9)]
    ends = np.cumsum([11, *jumps])
    last = content[ends[3] : -1]
    return content[:5], [*(content[ends[k] : ends[k + 1]] for k in range(3)), last]


def block_of(head: bytes, streams: Sequence[bytes], jumps: Sequence[int] | None = None) -> Block:
    """The inverse, whatever the streams are; `jumps` may tell other lengths of them."""
    jumps = [len(stream) for stream in streams[:3]] if jumps is None else jumps
    body = b"".join(jump.to_bytes(2, "little") for jump in jumps) + b"".join(streams)
    word = int.from_bytes(head, "little") & (1 << 22) - 1 | len(body) << 22
    content = word.to_bytes(5, "little") + body + b"\0"
    return COMPRESSED, len(content), content


@pytest.mark.parametrize(
    "order",
    [
        ["a128 tree", "a128 same"],
        ["a64 tree", "a64 same", "a64 same", "a64 same"],
        ["a80 tree", "a80 same", "a80 same", "a80 rest", "b80 tree"],
        ["a80 tree", "a64 tree", "b80 tree", "b128 tree"],
        ["a128 tree", "b128 tree"],
        ["a64 tree", "b64 tree", "b64 same", "a64 tree"],
        ["a128 tree", "a64 tree", "a64 same", "b128 tree", "b128 same"],
        ["a128 tree", "a128 rest", "a128 same", "a128 same"],
        ["a128 tree", "raw 10", "a128 same"],
        ["a128 tree", "raw 0", "a128 same"],
        ["a128 tree", "run 128", "a128 same", "a128 same"],
        ["a64 tree", "raw 64", "a64 same"],
        ["a64 tree", "one stream", "b64 tree"],
        ["raw 10", "a128 tree", "a128 same", "run 10"],
    ],
)
def test_neighbours(order: list[str]) -> None:
    frame, size = frame_with(order)
    data = by_zstd(frame, size)
    assert data is not None
    assert by_kernel(frame, size) == data


@pytest.mark.parametrize("order", [["a128 same"], ["a64 same", "a64 tree"], ["raw 64", "a64 same", "a64 same"]])
def test_no_tree_yet(order: list[str]) -> None:
    frame, size = frame_with(order)
    assert by_zstd(frame, size) is None
    assert by_kernel(frame, size) is None


@given(orders)
def test_any_order(order: list[str]) -> None:
    frame, size = frame_with(order)
    data, found = by_zstd(frame, size), by_kernel(frame, size)
    if has_all_trees(order):
        assert data is not None
        assert found == data
    assert found in (None, data)  # codes of another tree may fit by chance
    if size:
        assert by_kernel(frame, size - 1) is None
    assert by_kernel(frame, size + 1) is None


@given(orders, changes)
def test_any_order_damaged(order: list[str], listed: list[Change]) -> None:
    frame, size = frame_with(order)
    damaged = changed(frame, listed)
    if (found := by_kernel(damaged, size)) is not None:
        assert by_zstd(damaged, size) == found


@pytest.mark.parametrize("part", ["128", "64"])
@pytest.mark.parametrize("seed", range(4))
def test_damage_in_one_of_two(part: str, seed: int) -> None:
    """Wherever a bit flips in one of two blocks that are read together, in its head, tree, sizes, streams or end."""
    choose = random.Random(seed)
    order = [f"a{part} tree", f"a{part} same" if seed % 2 else f"b{part} tree"]
    intact, size = frame_with(order)
    data = by_zstd(intact, size)
    known = [PIECES[name][0] for name in order]
    for number in (0, 1):
        kind, length, content = known[number]
        for place in [*range(40), *(choose.randrange(length) for _ in range(30)), *range(length - 10, length)]:
            damaged = flipped(content, place, 1 << choose.randrange(8))
            blocks = [(kind, length, damaged) if k == number else known[k] for k in (0, 1)]
            if (found := by_kernel(frame_of(blocks, size), size)) is not None:
                assert by_zstd(frame_of(blocks, size), size) == found
                assert found != data or place < 40  # bits of a tree's description may mean nothing


@pytest.mark.parametrize("part", ["128", "64"])
@pytest.mark.parametrize("stream", range(4))
def test_streams_that_do_not_end_where_they_should(part: str, stream: int) -> None:
    """The kernel wants each bit to be used. libzstd is lax, and the reference, which has it, sees such frames, too."""
    (first, size), (second, _) = PIECES[f"a{part} tree"], PIECES[f"a{part} same"]
    size *= 2
    head, streams = streams_of(second)
    assert block_of(head, streams) == second

    def with_stream(content: bytes) -> Block:
        return block_of(head, [content if k == stream else each for k, each in enumerate(streams)])

    own = streams[stream]
    longer = [len(each) + (k == stream) for k, each in enumerate(streams[:3])] if stream < 3 else [65535] * 3
    assert by_kernel(frame_of([first, with_stream(own)], size), size) is not None
    for block in (
        with_stream(b"\0" + own),  # bits that are never reached
        with_stream(bytes(8) + own),
        with_stream(own[1:]),  # bits that are missing
        with_stream(own[9:]),
        with_stream(own + b"\0"),  # no end mark
        with_stream(b""),
        with_stream(b"\1"),
        with_stream(b"\1" * 16),
        with_stream(b"\xff" * 40_000),
        block_of(head, streams, longer),
    ):
        assert by_kernel(frame_of([first, block], size), size) is None
        assert by_kernel(frame_of([first, block, second], 3 * size // 2), 3 * size // 2) is None
    for content in (own + b"\1", own[:-1] + bytes([own[-1] ^ 1 << own[-1].bit_length() - 1])):  # another end mark
        frame = frame_of([first, with_stream(content)], size)
        assert by_kernel(frame, size) in (None, by_zstd(frame, size))


@pytest.mark.parametrize("size", [64 * KIB, 128 * KIB, 129 * KIB, 192 * KIB, 256 * KIB - 1, 256 * KIB, 300_000])
def test_frames_have_pairs_of_blocks(size: int) -> None:
    """Blocks of one size, where there is enough for two, and one tree for all."""
    data = near(100, 3.0, size)
    frame = compressed(data)
    assert by_zstd(frame, size) == data
    count = 1 if size <= 64 * KIB else -(-size // (256 * KIB)) * 2
    assert [content[0] & 3 for _, _, content in blocks_of(frame)] == [2, 3, 3, 3][:count]


def test_parts_of_another_kind_have_codes_of_their_own() -> None:
    noise = np.random.default_rng(1).bytes(96 * KIB)
    kinds = [near(100, 3.0, 96 * KIB), near(60, 1.5, 160 * KIB), b"r" * 64 * KIB, noise, near(100, 3.0, 33 * KIB)]
    data = b"".join(kinds)
    frame = compressed(data)
    assert by_zstd(frame, len(data)) == data == by_kernel(frame, len(data))
    blocks = blocks_of(frame)
    trees = [content[0] & 3 if kind == COMPRESSED else None for kind, _, content in blocks]
    assert [kind for kind, _, _ in blocks if kind != COMPRESSED] == [RUN, RAW, RAW]
    assert [tree for tree in trees if tree == 2] == [2] * 3
    assert len(frame) < sum(len(compressed(part)) for part in kinds)


def test_what_hardly_differs_shares_codes() -> None:
    """A table for each part would take longer to read than it saves."""
    data = b"".join(near(middle, 3.0, 64 * KIB) for middle in (100, 100, 101, 100))
    assert sum(content[0] & 3 == 2 for _, _, content in blocks_of(compressed(data))) == 1


@pytest.mark.parametrize("half", [64 * KIB, 128 * KIB])
@pytest.mark.parametrize("long", [7, 40, 3000])
def test_long_codes_that_follow_each_other(half: int, long: int) -> None:
    """Of short codes, more are read at once than would be safe for the longest."""
    choose = random.Random(long)
    data = bytearray(choose.choices(range(8), k=2 * half))
    for _ in range(2 * half // (8 * long)):
        at = choose.randrange(len(data) - long)
        data[at : at + long] = choose.choices(range(8, 256), k=long)
    for end in (half // 4, half, 2 * half):  # of streams
        data[end - long : end] = choose.choices(range(8, 256), k=long)
    frame = compressed(bytes(data))
    assert len(frame) < 6 * len(data) // 8
    assert by_zstd(frame, len(data)) == data == by_kernel(frame, len(data))
    for at in choose.sample(range(9, len(frame)), 100):
        altered = flipped(frame, at, 1 << choose.randrange(8))
        assert by_kernel(altered, len(data)) in (None, by_zstd(altered, len(data)))
