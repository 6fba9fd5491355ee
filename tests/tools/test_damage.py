"""Each damage, and what each reader makes of it: a load, `Checkpoint`, `verify`, `salvage` and `latest`."""

import re
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

import streamxf
from streamxf import errors
from streamxf.manager.listing import Run
from streamxf.storage.local import LocalStorage
from tests.altered import flip, flipped
from tests.dcp import helpers
from tests.tools.verify.remote import url_of
from tests.tools.world import World


class Readers(World):
    """Each reader's answer, in the words of the table."""

    def load(self) -> str:
        loaded: list[Any] = []
        error = helpers.error_of(lambda: loaded.append(helpers.load(self.state, self.folder, self.keys)))
        helpers.assert_same(loaded, [] if error else [self.state])
        return "=" if error is None else type(error).__name__

    def open(self) -> str:
        """By `Checkpoint`, each item by itself."""
        with streamxf.Checkpoint(self.folder, keys=self.keys) as checkpoint:
            found = {name: helpers.error_of(lambda name=name: self.read(checkpoint, name)) for name in self.state}
        assert all(isinstance(error, errors.StreamxfError) for error in found.values() if error)
        assert {(error.item, error.file) for error in found.values() if isinstance(error, errors.BlockError)} <= {
            (name, str(self.file)) for name, error in found.items() if error
        }
        return " ".join(f"{name}:{type(error).__name__}" for name, error in found.items() if error) or "="

    def read(self, checkpoint: Any, name: str) -> None:
        helpers.assert_same(checkpoint[name].read(), self.state[name])

    def verify(self) -> str:
        found, others = set(), [file.name for file in helpers.data_files(self.older)]
        for path, keys in ((self.folder, self.keys), (self.folder, None), (url_of(self.folder), self.keys)):
            report = streamxf.verify(path, keys=keys)
            blocks = [(each, {each.block, each.last_block} - {None}) for each in report.damaged]
            damaged = (f"{each.item or '-'}{''.join(map(str, sorted(at)))}:{each.error}" for each, at in blocks)
            found.add(" ".join(sorted(set(damaged))) or "=")
            assert report.ok == (not report.damaged)
            assert {each.file for each in report.damaged} <= {self.file.name, ".metadata", *others}
        (told,) = found
        return told

    def salvage(self) -> str:
        """Which items are lost; the others are right."""
        found = streamxf.load_intact(self.folder, keys=self.keys)
        for name in found.loaded:
            helpers.assert_same(found.state_dict[name], self.state[name])
        assert {*found.loaded, *found.lost} == set(self.state)
        return "".join(sorted(found.lost)) or "="

    def salvage_without_metadata(self) -> str:
        """In place: what is lost has its old value."""
        target, old = helpers.blank(self.state), helpers.blank(self.state)
        found = streamxf.load_intact(self.folder, target, keys=self.keys, without_metadata=True)
        lost = set(self.state) - set(found.loaded)
        helpers.assert_same(target, {name: (old if name in lost else self.state)[name] for name in target})
        return "".join(sorted(lost)) or "="

    def latest(self) -> str:
        return "new" if streamxf.latest(self.run, keys=self.keys) == str(self.folder) else "old"


def older_file(world: World) -> None:
    shutil.copy(*helpers.data_files(world.older), world.file)


def exchange_items(world: World) -> None:
    (low, middle), (high, end) = sorted(world.places[name] for name in "ab")
    world.replace(low, end, world.data[high:end] + world.data[middle:high] + world.data[low:middle])


def cut_metadata(world: World, size: int) -> None:
    world.metadata.write_bytes(world.metadata.read_bytes()[:size])


def zeros_behind_half(world: World) -> None:
    size = world.metadata.stat().st_size
    cut_metadata(world, size // 2)
    with world.metadata.open("ab") as file:
        file.write(bytes(size - size // 2))


Damage = Callable[[World], object]
OF_BLOCKS: dict[str, tuple[Damage, str]] = {
    "length of a block": (lambda w: flip(w.file, w.block("a", 1)[0], 16), "B | a:B | a1:B | a | new | a"),
    "CRC of a block": (lambda w: flip(w.file, w.block("a", 1)[0] + 4, 16), "B | a:B | a1:B | a | new | a"),
    "payload": (lambda w: flip(w.file, w.block("b", 3)[1] - 1, 16), "B | b:B | b3:B | b | new | b"),
    "payload of an object": (lambda w: flip(w.file, w.block("o", 0)[1] - 1, 16), "B | o:B | o0:B | o | new | o"),
    "two blocks of zeros": (
        lambda w: w.replace(w.block("a", 1)[0], w.block("a", 2)[1]),
        "B | a:B | a12:B | a | new | a",
    ),
    "blocks apart": (
        lambda w: [flip(w.file, w.block("a", n)[1] - 1) for n in (0, 2, 3)],
        "B | a:B | a0:B a23:B | a | new | a",
    ),
    "a block is cut out": (
        lambda w: w.replace(*w.block("a", 1), b""),
        "C | a:C b:C o:C | -:C a12:B a:C b:C | ab | old | a",
    ),
    "magic of a header": (lambda w: flip(w.file, w.places["a"][0]), "C | a:C | a:C | a | new | a"),
    "length in a header": (lambda w: flip(w.file, w.places["a"][0] + 9, 16), "C | a:C | a:C | a | new | a"),
    "flags in a header": (lambda w: flip(w.file, w.places["a"][0] + 20, 16), "C | a:C | a:C | a | new | a"),
    "identity in a header": (lambda w: flip(w.file, w.places["a"][0] + 60, 16), "C | a:C | a:C | a | new | a"),
    "entry of a table": (lambda w: flip(w.file, w.places["a"][1] - 33, 16), "C | a:C | a:C | a | new | a"),
    "size in a footer": (lambda w: flip(w.file, w.places["a"][1] - 20, 16), "C | a:C | a:C | a | new | a"),
    "magic of a footer": (lambda w: flip(w.file, w.places["a"][1] - 1, 16), "C | a:C | a:C | a | new | a"),
    "an item of zeros": (lambda w: w.replace(*w.places["a"]), "C | a:C | a:C | a | new | a"),
    "zeros": (lambda w: w.replace(0, len(w.data)), "C | a:C b:C o:C | a:C b:C o:C | abo | new | abo"),
    "cut by a byte": (lambda w: w.file.write_bytes(w.data[:-1]), "C | a:C b:C o:C | -:C b:C | b | old | b"),
    "an older file": (older_file, "I | a:I b:I o:I | a:I b:I o:I | abo | new | abo"),
}
"""What is done to a checkpoint with a chain; and what comes of it: the error of a load; errors of `Checkpoint`; what
`verify` calls damaged, where - is the file and a number a block; what is lost to `salvage`; which checkpoint is the
latest; and what is lost to `salvage` without metadata."""
OF_FILES: dict[str, tuple[Damage, str]] = {
    "nothing": (lambda w: None, "= | = | = | = | new | ="),
    "cut where an item begins": (
        lambda w: w.file.write_bytes(w.data[: max(w.places.values())[0]]),
        "C | a:C b:C o:C | -:C b:M | b | old | b",
    ),
    "empty": (lambda w: w.file.write_bytes(b""), "C | a:C b:C o:C | -:C a:M b:M o:M | abo | old | abo"),
    "continued": (lambda w: w.file.write_bytes(w.data + b"\0"), "C | a:C b:C o:C | -:C | = | old | ="),
    "missing": (lambda w: w.file.unlink(), "M | a:M b:M o:M | -:M | abo | old | M"),
    "pickle of the metadata": (lambda w: flip(w.metadata, 100), "= | = | -:M | = | new | ="),
}
OF_METADATA: dict[str, tuple[Damage, str]] = {
    "missing": (lambda w: w.metadata.unlink(), "A | M | -:M | M | old | =/M"),
    "empty": (lambda w: cut_metadata(w, 0), "M | M | -:M | M | old | =/M"),
    "zeros": (lambda w: w.metadata.write_bytes(bytes(5000)), "M/P | M/P | -:M | M/P | old | =/M"),
    "half": (lambda w: cut_metadata(w, w.metadata.stat().st_size // 2), "M/P | M/P | -:M | M/P | old | ="),
    "half and zeros": (zeros_behind_half, "M/P | M/P | -:M | M/P | old | ="),
    "cut by a byte": (lambda w: cut_metadata(w, -1), "M/P | M/P | -:M | M/P | old | ="),
    "root": (lambda w: flip(w.metadata, w.pickled), "M | M | -:M | M | old | ="),
    "trailer": (lambda w: flip(w.metadata, -20), "M | M | -:M | M | old | ="),
    "that of another save": (
        lambda w: shutil.copy(w.older / ".metadata", w.metadata),
        "M | a:M b:M o:M | -:M | abo | old | =/abo",
    ),
}
"""Behind / stands what is so of encrypted checkpoints."""
OF_BARE: dict[str, tuple[Damage, str]] = {
    "a bit": (lambda w: flip(w.file, sum(w.places["a"]) // 2), "B | a:B | a0:B | a | new | a"),
    "an item of zeros": (lambda w: w.replace(*w.places["a"]), "B | a:B | a0:B | a | new | a"),
    "two items exchanged": (exchange_items, "B | a:B b:B | a0:B b0:B | ab | new | ab"),
}
OF_VALUES: dict[str, tuple[Damage, str]] = {
    "payload": (lambda w: flip(w.file, w.block("o", 0)[1] - 1, 16), "B | o:B p:B | o0:B p:C | op | new | op"),
    "a later block": (lambda w: flip(w.file, w.block("o", 3)[1] - 1, 16), "B | o:B p:B | o3:B p:C | op | new | op"),
    "length in a header": (lambda w: flip(w.file, w.places["o"][0] + 9, 16), "C | o:C p:C | o:C p:C | op | new | op"),
    "entry of a table": (lambda w: flip(w.file, w.places["o"][1] - 25, 16), "C | o:C p:C | o:C p:C | op | new | op"),
    "an item of zeros": (lambda w: w.replace(*w.places["o"]), "C | o:C p:C | o:C p:C | op | new | op"),
    "cut by a byte": (lambda w: w.file.write_bytes(w.data[:-1]), "C | a:C b:C o:C p:C | -:C o:C p:C | op | old | op"),
    "an older file": (older_file, "I | a:I b:I o:I p:I | a:I b:I o:I p:C | abop | new | abop"),
    "a tensor": (lambda w: flip(w.file, w.block("b", 3)[1] - 1, 16), "B | b:B | b3:B | b | new | b"),
}
"""Values that share a container are lost together."""
OF_EQUAL_SIZES = {"two items exchanged": (exchange_items, "I | a:I b:I | a:I b:I | ab | new | =")}
TABLE = {"data": OF_FILES, "blocks": OF_BLOCKS, "metadata": OF_METADATA, "bare": OF_BARE, "sizes": OF_EQUAL_SIZES}
TABLE["values"] = OF_VALUES
THROUGH = {
    "data": ("none", "zstd", "full"),
    "blocks": ("floatzip", "full"),
    "metadata": ("none", "zstd", "full"),
    "bare": ("none",),
    "sizes": ("checksum", "sealed"),
    "values": ("values", "sealed values"),
}
CASES = [(chain, what, name) for what, chains in THROUGH.items() for chain in chains for name in TABLE[what]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run saved through a chain, once for all tests."""
    return cache(lambda chain: World(tmp_path_factory.mktemp(chain) / "run", chain).run)


def told(call: Callable[[], str]) -> str:
    """What a reader says, errors by the letters of the table."""
    try:
        said = call()
    except errors.StreamxfError as error:
        said = type(error).__name__
    return re.sub(r"([A-Z])\w+Error", r"\1", said)


@pytest.mark.parametrize(("chain", "what", "name"), CASES)
def test_each_reader_says_what_the_table_says(
    tmp_path: Path, runs: Callable[[str], Path], chain: str, what: str, name: str
) -> None:
    shutil.copytree(runs(chain), tmp_path / "run")
    world = Readers(tmp_path / "run", chain)
    damage, row = TABLE[what][name]
    damage(world)
    found = [told(call) for call in (world.load, world.open, world.verify, world.salvage, world.latest)]
    if chain != "none":  # without a codec items do not say what they are
        if what != "metadata":
            flip(world.metadata, world.pickled)
        found.append(told(world.salvage_without_metadata))
    cells = [cell.split("/")[-1 if world.keys else 0] for cell in row.split(" | ")]
    assert found == cells[: len(found)]


@pytest.mark.parametrize("chain", ["none", "full"])
def test_every_tool_notices_a_flipped_bit_of_an_index(tmp_path: Path, runs: Callable[[str], Path], chain: str) -> None:
    """And changes nothing. In the pickle it does not matter, since that is not read."""
    shutil.copytree(runs(chain), tmp_path / "run")
    world = World(tmp_path / "run", chain)
    whole, names = world.metadata.read_bytes(), {*world.folder.iterdir()}
    for place in (*range(0, world.pickled, 80), *range(world.pickled, len(whole), 5)):
        world.metadata.write_bytes(changed := flipped(whole, place, 1 << place % 8))
        in_index = place >= world.pickled
        record = Run(LocalStorage(world.run)).record("step-2")
        assert record is not None
        assert (record.damaged, "Error" in (record.note or "")) == (in_index, in_index)
        calls = [partial(streamxf.clean, world.folder, keys=keys) for keys in {world.keys, None}]
        if in_index and world.keys:
            calls.append(partial(streamxf.rekey, world.folder, keys=world.keys, recipients=helpers.OTHER_KEY))
        for call in calls:
            assert isinstance(helpers.error_of(call), errors.StreamxfError) == in_index
        assert ({*world.folder.iterdir()}, world.metadata.read_bytes()) == (names, changed)
