"""Blocks of a keyed stream in every other order, left out, repeated and taken from elsewhere, with every CRC right."""

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from pathlib import Path

import pytest
import torch

from streamxf import Encrypt, ZStandard
from streamxf.errors import AuthenticationError
from tests.dcp.helpers import KEY
from tests.forge import Parts, take_container_apart
from tests.reference_codecs import Refused
from tests.reference_decoder import read_plain
from tests.reference_keys import Reader, aes_key
from tests.samples import data_of

from .rows import Row
from .targets import BLOCK, Checkpoint, Container, PlainFile

ROW = "reorder, duplicate, delete blocks"
MEBIBYTES = 48  # an attached writer's blocks have 1 MiB, and torch.load takes the whole tensor besides

Block = tuple[bool, bytes]
READERS = ["own", "attached", "file", "pipe"]


def matrix(blocks: int, block_size: int) -> torch.Tensor:
    """A tensor whose stream has so many blocks, which are small once they are compressed, and no two of them alike."""
    rows = blocks * block_size // 4096
    return torch.arange(rows - 1, dtype=torch.float32).repeat_interleave(1024).reshape(-1, 1024)


def target(reader: str, count: int, folder: Path) -> Container:
    """A stream of `count` blocks, of checkpoints through the full chain, of plain files through Encrypt alone: there
    no other codec sees a block that is not the right one.
    """
    if reader in ("file", "pipe"):
        data = matrix(count, BLOCK).numpy().tobytes()
        return PlainFile(data, [Encrypt(KEY)], pipe=reader == "pipe").container()
    size = BLOCK if reader == "own" else 1 << 20
    checkpoint = Checkpoint(folder / f"{reader} {count}", {"w": matrix(count, size)}, writer=reader)
    (container,) = checkpoint.containers()
    assert len(container.at.blocks) == count
    return container


def relast(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The blocks with the last bit where a container must have it."""
    return tuple((index == len(blocks) - 1, payload) for index, (_, payload) in enumerate(blocks))


def sizes(parts: Parts, count: int) -> list[int]:
    """What a footer may say of a stream of `count` blocks: as if the true last one, or a full one, came last."""
    full = 1 << parts.block_log2
    return [(count - 1) * full + parts.raw_size % full, count * full]


def orders(count: int) -> Iterator[tuple[int, ...]]:
    """Every order of every choice of blocks, but the one that is right. First comes one that only numbers tell apart:
    the last block is where it was, and all sizes are.
    """
    exchanged = (1, 0, *range(2, count))
    yield exchanged
    for size in range(1, count + 1):
        yield from (
            order for order in permutations(range(count), size) if order not in (exchanged, tuple(range(count)))
        )


def rebuilt(container: Container, order: Sequence[int], full: bool = False) -> bytes:
    parts = take_container_apart(container.intact)
    blocks = relast([parts.blocks[index] for index in order])
    return parts.change(blocks=blocks, raw_size=sizes(parts, len(order))[full]).container()


def refuse_all(row: Row, container: Container, made: Iterator[tuple[object, bytes]]) -> None:
    for what, file in made:
        row.refuse(f"{container.name}, {what}", container.load, file)


@pytest.mark.parametrize("reader", READERS)
def test_every_order_of_every_choice(row: Row, tmp_path: Path, reader: str) -> None:
    for count in range(2, 8):
        container = target(reader, count, tmp_path)
        spared = {5: 3, 6: 20, 7: 120} if reader != "attached" else {4: 2, 5: 10, 6: 60, 7: 600}
        refuse_all(
            row,
            container,
            (
                ((order, full), rebuilt(container, order, full))
                for order in row.share(orders(count), spared.get(count, 1))
                for full in (False, True)
            ),
        )


def test_a_stream_that_was_cut_between_two_blocks(row: Row, tmp_path: Path) -> None:
    """Its last block was not the last one when it was encrypted, which its tag shows."""
    for count in (2, 3):
        container = target("attached", count, tmp_path)
        row.refuse(count, container.load, rebuilt(container, range(count - 1), full=True), kind=AuthenticationError)


@pytest.mark.parametrize("reader", READERS)
def test_duplicates(row: Row, tmp_path: Path, reader: str) -> None:
    """Each block once more at each place, and each in the place of each other."""
    for count in range(1, 8):
        container = target(reader, count, tmp_path)
        straight = list(range(count))
        repeats = [[*straight[:place], which, *straight[place:]] for place in range(count + 1) for which in straight]
        replaced = [
            [*straight[:place], which, *straight[place + 1 :]]
            for place in straight
            for which in straight
            if place != which
        ]
        made = row.share([(order, full) for order in repeats + replaced for full in (False, True)], count)
        refuse_all(row, container, (((order, full), rebuilt(container, order, full)) for order, full in made))


def test_deletions_that_keep_the_files_size(row: Row, tmp_path: Path) -> None:
    """The index knows the size of each file; what a deleted block took goes into another's payload."""
    for count in range(2, 8 if row.every else 5):
        container = target("own", count, tmp_path)
        parts = take_container_apart(container.intact)
        for gone in range(count):
            kept = [block for number, block in enumerate(parts.blocks) if number != gone]
            filling = bytes(len(parts.blocks[gone][1]) + 12)  # with the block's head, and its entry in the table
            for place in range(count - 1):
                last, payload = kept[place]
                blocks = relast([*kept[:place], (last, payload + filling), *kept[place + 1 :]])
                for raw_size in sizes(parts, count - 1):
                    file = parts.change(blocks=blocks, raw_size=raw_size).container()
                    assert len(file) == len(container.intact)
                    row.refuse((gone, place), container.load, file)


@pytest.mark.parametrize("reader", READERS)
def test_last_bits(row: Row, tmp_path: Path, reader: str) -> None:
    for count in (1, 2, 4):
        container = target(reader, count, tmp_path)
        parts = take_container_apart(container.intact)
        for pattern in range(2**count):
            if pattern == 1 << count - 1:
                continue
            blocks = tuple((bool(pattern >> index & 1), payload) for index, (_, payload) in enumerate(parts.blocks))
            file = parts.change(blocks=blocks).container()
            row.refuse(f"{count}, {pattern:b}", container.load, file)


@pytest.mark.parametrize("reader", READERS)
def test_blocks_of_another_stream_under_the_same_key(row: Row, tmp_path: Path, reader: str) -> None:
    """From another place of the same save, or another save, or another file: every set of places."""
    count = 4
    container = target(reader, count, tmp_path)
    other = target(reader, count, tmp_path / "other")
    parts, others = take_container_apart(container.intact), take_container_apart(other.intact)
    for chosen in range(1, 2**count):
        blocks = tuple((others if chosen >> index & 1 else parts).blocks[index] for index in range(count))
        file = parts.change(blocks=blocks).container()
        row.refuse(f"{chosen:b}", container.load, file, kind=AuthenticationError)
    # with its salt and seal too
    for change in ({"salt": others.salt}, {"seal": others.seal}, {"salt": others.salt, "seal": others.seal}):
        file = parts.change(blocks=others.blocks, **change).container()
        row.refuse(sorted(change), container.load, file, kind=AuthenticationError)


@pytest.mark.parametrize("reader", READERS)
def test_footers_that_lie_about_the_size(row: Row, tmp_path: Path, reader: str) -> None:
    container = target(reader, 3, tmp_path)
    parts = take_container_apart(container.intact)
    full = 1 << parts.block_log2
    for size in (parts.raw_size - 1, parts.raw_size + 1, 2 * full + 1, 3 * full, 0, full):
        file = parts.change(raw_size=size).container()
        row.refuse(size, container.load, file)


def test_the_second_decoder_refuses_them_too() -> None:
    """The page says what is refused, and so does a decoder that was written from the page alone."""
    file = PlainFile(matrix(4, BLOCK).numpy().tobytes(), [Encrypt(KEY)], pipe=False)
    container = file.container()
    for order in [*orders(4), (0, 0, 1, 2, 3), (0, 1, 2, 3, 3)]:
        for full in (False, True):
            made = file.parts.prefix + rebuilt(container, order, full) + file.parts.tail
            with pytest.raises(Refused):
                read_plain(made, Reader([aes_key(KEY.reveal())]))


# -- without a key: storage that mixes up blocks, and leaves their CRCs as they were -----------------------------------


@pytest.fixture(params=["own", "file", "pipe"])
def unkeyed(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], Container]:
    def make(count: int) -> Container:
        if request.param != "own":
            return PlainFile(data_of(BLOCK * count - 10), [ZStandard()], pipe=request.param == "pipe").container()
        state = {"w": matrix(count, BLOCK)}
        (container,) = Checkpoint(tmp_path / str(count), state, keyed=False).containers()
        return container

    return make


def test_misplaced_blocks_without_a_key(row: Row, unkeyed: Callable[[int], Container]) -> None:
    for count in range(2, 6):
        container = unkeyed(count)
        parts = take_container_apart(container.intact)
        crcs = [container.intact[head + 4 : head + 8] for head, _ in container.at.blocks]
        for order in row.share(orders(count), {4: 2, 5: 10}.get(count, 1)):
            chosen = [parts.blocks[index] for index in order]
            kept = tuple(crcs[index] for index in order)
            for blocks in (tuple(chosen), relast(chosen)):
                for raw_size in sizes(parts, len(order)):
                    file = parts.change(blocks=blocks, raw_size=raw_size, crcs=kept).container()
                    row.refuse(order, container.load, file)
