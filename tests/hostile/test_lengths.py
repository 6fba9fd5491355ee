"""Six hostile values for each number of header, block, table, footer, prefix, trailer and index; CRCs are right."""

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import streamxf
from streamxf.errors import ContainerError
from tests.dcp.helpers import full_chain, rewrite_index
from tests.forge import Parts, seal_of, split_metadata, take_apart, take_container_apart, with_crc
from tests.samples import BLOCK, KEY, OneWay, data_of, encode

from .rows import Row, six
from .targets import Checkpoint, Container, PlainFile

ROW = "hostile lengths"
MEBIBYTES = 72  # who reads a plain file without a key and in one go takes it in steps of 64 MiB

DATA = data_of(2 * BLOCK + 10)
NUMBERS = {1: "B", 2: "<H", 4: "<I", 8: "<Q"}


@pytest.fixture(params=["own, keyed", "own, unkeyed", "attached, keyed", "file, keyed", "pipe, keyed", "file", "pipe"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[Container], Any]:
    """The containers that are attacked, and what they rightly hold."""
    kind = request.param
    if kind.startswith(("own", "attached")):
        made = Checkpoint(tmp_path / "checkpoint", writer=kind.partition(",")[0], keyed="unkeyed" not in kind)
        return list(made.containers()), made.right
    file = PlainFile(DATA, full_chain() if "keyed" in kind else (), pipe="pipe" in kind)
    return [file.container()], DATA


def fields(container: Container) -> Iterator[tuple[str, int, int]]:
    """Each number's name, place and size in bytes."""
    yield from (
        *[("version", 8, 1), ("suite", 9, 1), ("flags", 10, 1), ("block_log2", 12, 1), ("chain_len", 13, 2)],
        ("ident_len", 15, 2),
    )
    chain_len, ident_len = struct.unpack_from("<HH", container.intact, 13)
    if ident_len:
        identity = 33 + chain_len
        yield "number", identity + 16, 8
        yield "kind", identity + 24, 1
        yield "ndim", identity + 25, 1
        yield "dtype_len", identity + 26, 1
        yield "width", identity + 27, 1
        width = container.intact[identity + 27]
        numbers = identity + 28 + container.intact[identity + 26]
        for number in range(3 * container.intact[identity + 25]):
            yield f"offset or shape {number}", numbers + width * number, width
    for number, (head, _) in enumerate(container.at.blocks):
        yield f"stored_len {number}", head, 4
        yield f"entry {number}", container.at.table + 4 * number, 4
    yield "raw_size", container.at.end - 20, 8


LIMITS = {
    "block_log2": 24,
    "chain_len": 1024,
    "ident_len": 4096,
    "ndim": 64,
    "dtype_len": 36,
    "raw_size": 2**48,
    "number": 2**53 - 1,
}


def mended(container: Container, altered: bytes) -> Iterator[bytes]:
    """With the header's CRC where it stood, and where its altered lengths say that it stands."""
    yield container.mended(altered)
    flags, (chain_len, ident_len) = altered[10], struct.unpack_from("<HH", altered, 13)
    end = 33 + chain_len + ident_len + (32 if flags & 1 else 0)
    if end != container.at.header_crc and end + 4 <= len(altered):
        yield with_crc(altered[:end]) + altered[end + 4 :]


def test_every_number_of_a_container(row: Row, target: tuple[list[Container], Any]) -> None:
    containers, right = target
    for container in containers:
        for name, place, size in fields(container):
            (value,) = struct.unpack_from(NUMBERS[size], container.intact, place)
            limit = LIMITS.get(name) or (BLOCK + BLOCK // 16 + 1024 if "stored_len" in name else None)
            last = value & 1 << 31 if "stored_len" in name else 0
            for number in six(value - last, 8 * size - bool(last), limit=limit):
                altered = bytearray(container.intact)
                struct.pack_into(NUMBERS[size], altered, place, number | last)
                for made in mended(container, bytes(altered)):
                    what = f"{container.name}, {name} = {number}"
                    if container.intact[10] & 1:
                        row.refuse(what, container.load, made)
                    else:  # a larger block_log2 does not matter to a stream of one block
                        row.refuse_or_equal(what, right, container.load, made)


@pytest.mark.parametrize("pipe", [False, True], ids=["file", "pipe"])
def test_every_number_of_a_prefix(row: Row, pipe: bool) -> None:
    for chain in ((), full_chain()):
        file = PlainFile(DATA, chain, pipe=pipe)
        length = len(file.wrapped)
        for number in (*six(length, 32, limit=65536), 65536, 512):
            raw = file.file[:12] + struct.pack("<I", number) + file.file[16:]
            row.refuse(number, file.load, raw)
            if number <= 65537:
                row.refuse(number, file.load, file.with_wrapped((file.wrapped + bytes(number))[:number]))


@pytest.mark.parametrize("pipe", [False, True], ids=["file", "pipe"])
def test_every_number_of_a_seal(row: Row, pipe: bool) -> None:
    file = PlainFile(DATA, full_chain(), pipe=pipe)
    vouchers = file.parts.tail[:-20].decode()
    for number in six(0, 32):
        if number:
            row.refuse(number, file.load, file.parts.change(tail=seal_of(vouchers, count=number)).pack())
    for number in six(len(vouchers), 32, limit=65536):
        for text in (vouchers, (vouchers * 200)[:number]):
            row.refuse(number, file.load, file.parts.change(tail=seal_of(text, number)).pack())


@pytest.mark.parametrize("keyed", [True, False])
def test_every_number_of_the_trailer(row: Row, tmp_path: Path, keyed: bool) -> None:
    target = Checkpoint(tmp_path / "checkpoint", keyed=keyed)
    parts = split_metadata(target.metadata)
    values = {
        "head_size": (len(parts.pickled), 64, 2**63),
        "parts_size": (len(parts.parts), 64, 2**63),
        "index_size": (len(parts.packed_index), 32, 2**26),
        "keys_size": (len(parts.keys), 32, 2**16 + 1),
    }
    for name, (value, bits, limit) in values.items():
        for number in six(value, bits, limit=limit):
            row.refuse(f"{name} = {number}", target.with_metadata, parts.change(**{name: number}).pack())
    for place, value in enumerate((1, 1, 0)):
        for number in six(value, 8, limit=1):
            format_bytes = bytearray([1, 1, 0, 0])
            format_bytes[place] = number
            made = parts.change(format_bytes=bytes(format_bytes)).pack()
            row.refuse(f"format byte {place} = {number}", target.with_metadata, made)
    for place in range(4):
        reserved = bytes(place) + b"\1" + bytes(3 - place)
        row.refuse(f"byte {place}", target.with_metadata, parts.change(reserved=reserved).pack())


def numbers_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where numbers, and what may be one, stand in an index."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers_in(inner, (*path, key))
    elif isinstance(value, int) or path == ("rank",):
        yield path


@pytest.mark.parametrize("keyed", [True, False])
def test_every_number_of_the_index(row: Row, tmp_path: Path, keyed: bool) -> None:
    """Vouched for by a holder of the key."""
    target = Checkpoint(tmp_path / "checkpoint", keyed=keyed)
    places = list(numbers_in(split_metadata(target.metadata).index))
    assert len(places) > 10
    for path in places:

        def change(index: Any, path: tuple[Any, ...] = path, number: object = None) -> None:
            *outer, last = path
            for key in outer:
                index = index[key]
            index[last] = number

        for number in (*six(0, 53), -1, 2**53, 2**63, 2**200, 1e300, 0.5, True, "1", [1]):
            if number is True and path[0] in ("files", "items"):  # which columns store as 1
                continue
            try:
                rewrite_index(target.folder, lambda index, number=number, change=change: change(index, number=number))
            except (AttributeError, OverflowError, TypeError, ValueError):
                assert path[0] in ("files", "items"), "columns cannot say it"
                continue
            row.refuse_or_equal(f"{path} = {number}", target.right, target.load_metadata)
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**53:
                row.refuse(f"{path} = {number}", target.load_metadata)
            target.restore()


# -- numbers that contradict each other --------------------------------------------------------------------------------

PLAIN = take_apart(encode(DATA, ()))
KEYED = take_apart(encode(DATA, full_chain()))
EITHER = pytest.mark.parametrize("parts", [PLAIN, KEYED], ids=["plain", "keyed"])
BOTH = pytest.mark.parametrize("pipe", [False, True], ids=["file", "pipe"])


def loading(parts: Parts, pipe: bool) -> Any:
    file = parts.pack()
    keys = KEY if parts.flags & 1 else None

    def load() -> bytes:
        with streamxf.open(OneWay(file) if pipe else io.BytesIO(file), keys=keys) as opened:
            return opened.read()

    return load


@BOTH
@EITHER
@pytest.mark.parametrize(
    "change",
    [
        *({"raw_size": (2**32 - 2) * BLOCK + 1}, {"raw_size": 2**31 * BLOCK}, {"raw_size": 2 * BLOCK}),
        *({"raw_size": 3 * BLOCK + 1}, {"lengths": ()}, {"lengths": (0, 0, 0)}, {"lengths": (2**32 - 1,) * 3}),
        {"lengths": (2**31, 1, 2**31)},
    ],
    ids=str,
)
def test_footers(row: Row, pipe: bool, parts: Parts, change: dict[str, Any]) -> None:
    row.refuse(change, loading(parts.change(**change), pipe))


@BOTH
@pytest.mark.parametrize("which", range(3))
def test_a_table_that_is_off(row: Row, pipe: bool, which: int) -> None:
    places = [end - head - 8 for head, end in PlainFile(DATA, (), pipe=pipe).container().at.blocks]
    assert loading(PLAIN.change(lengths=tuple(places)), pipe)() == DATA
    for shift in (-1, 1, 8, -8):
        lengths = tuple(length + shift * (number == which) for number, length in enumerate(places))
        row.refuse(shift, loading(PLAIN.change(lengths=lengths), pipe))


@BOTH
@pytest.mark.parametrize("which", range(3))
def test_blocks_of_the_wrong_size(row: Row, pipe: bool, which: int) -> None:
    """Without a key the sizes are all that says whether a block is what it should be."""
    for size in (0, 1, BLOCK - 1, BLOCK + 1):
        blocks = list(PLAIN.blocks)
        blocks[which] = (blocks[which][0], bytes(size))
        row.refuse(size, loading(PLAIN.change(blocks=tuple(blocks)), pipe))


@BOTH
def test_a_small_file_that_claims_to_be_large(row: Row, pipe: bool) -> None:
    """64 empty blocks of 16 MiB are 1 GiB by their footer, and 1 KiB by their weight; so are those of one byte."""
    for payload in (b"", b"x"):
        blocks = ((False, payload),) * 63 + ((True, payload),)
        row.refuse("1 GiB", loading(PLAIN.change(block_log2=24, blocks=blocks, raw_size=64 << 24), pipe))


def test_the_size_is_believed_only_where_a_block_vouches_for_it(row: Row, tmp_path: Path) -> None:
    """What the container of an object says of its size is checked when it is opened, before anything is allocated."""
    target = Checkpoint(tmp_path / "checkpoint", {"o": DATA.hex()}, chain=[streamxf.Encrypt(KEY)])
    (container,) = target.containers()
    parts = take_container_apart(container.intact)
    for raw_size in (parts.raw_size - 1, parts.raw_size + 1, len(parts.blocks) * BLOCK):
        target.data_file.write_bytes(parts.change(raw_size=raw_size).container())
        with streamxf.Checkpoint(target.folder, keys=target.keys) as checkpoint:
            row.refuse(raw_size, checkpoint.blocks, checkpoint.stored["o"])


def test_bytes_that_follow_for_ever_are_not_taken_in(row: Row) -> None:
    class Endless(OneWay):
        served = 0

        def readinto(self, buffer: Any) -> int:
            count = super().readinto(buffer)
            if not count:
                self.served += len(buffer)
                assert self.served < 16 * 2**20, "reads on and on"
                count = len(buffer)
            return count

    with streamxf.open(Endless(PLAIN.pack())) as file:
        assert "behind the container's end" in str(row.refuse("endless", file.read, kind=ContainerError))


def test_a_sparse_table_is_not_read_to_its_end(row: Row, tmp_path: Path) -> None:
    """A table of 2 GiB that is all hole, in a file that takes a few KiB of the disk."""
    blocks = 2**29
    whole = PLAIN.change(raw_size=blocks * BLOCK).container()
    head, tail = whole[:-20], whole[-20:]
    size = len(head) + 12 * blocks + 20
    file = tmp_path / "sparse"
    with file.open("wb") as raw:
        raw.write(PLAIN.prefix + head)
        raw.seek(len(PLAIN.prefix) + size - 20)
        raw.write(tail)
    row.refuse("sparse", lambda: streamxf.open(file).read())


def test_items_in_a_container_whose_size_the_metadata_knows(row: Row, tmp_path: Path) -> None:
    """A footer that claims more than the tensor can have, over blocks that decode to next to nothing."""
    target = Checkpoint(tmp_path / "checkpoint", writer="attached", keyed=False, chain=[streamxf.ZStandard()])
    for container in target.containers():
        parts = take_container_apart(container.intact)
        blocks = ((False, parts.blocks[0][1]),) * 1000 + ((True, parts.blocks[0][1]),)
        for log2 in (16, 20, 24):
            made = parts.change(block_log2=log2, blocks=blocks, raw_size=(1000 << log2) + 1).container()
            row.refuse((container.name, log2), container.load, made)
