"""Items, files, checkpoints and saves in each other's places, every pair of them.

They are caught by identity, seal or sizes, even where a holder of the key vouches for the index.
"""

import shutil
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, Encrypt, ZStandard
from streamxf.errors import AuthenticationError, ContainerError, IdentityError, MetadataError
from tests.dcp import helpers
from tests.dcp.shards import rows, save_shards
from tests.forge import take_container_apart

from .rows import Row
from .targets import Checkpoint, keys_for

ROW = "swap"

UNKEYED = [Checksum()]


def three() -> dict[str, Any]:
    return {"a": torch.zeros(5), "b": torch.ones(5), "c": torch.full((5,), 2.0), "o": {1}, "p": {2}}


def swap(mine: dict[str, Any], theirs: dict[str, Any], *, exchange: bool = True) -> None:
    """Give one place in an index the bytes of another one, and that one those of the first."""
    for member in ("at", "bytes", "file"):
        mine[member], before = theirs[member], mine[member]
        if exchange:
            theirs[member] = before


# -- items ---------------------------------------------------------------------------------------


def test_every_pair_of_entries(row: Row, checkpoint: Path, chain: list[Any]) -> None:
    """Each item's entry is replaced by each other's, or exchanged with it, under a tag that matches."""
    state = three()
    helpers.save(state, checkpoint, chain)
    whole = (checkpoint / ".metadata").read_bytes()
    for one, other in permutations(state, 2):
        for exchange in (True, False):

            def change(index: Any, one: str = one, other: str = other, exchange: bool = exchange) -> None:
                mine, theirs = (index["items"][name] for name in (one, other))
                mine, theirs = (item["chunks"][0] if "chunks" in item else item for item in (mine, theirs))
                swap(mine, theirs, exchange=exchange)

            helpers.rewrite_index(checkpoint, change)
            error = row.refuse((one, other), helpers.load, state, checkpoint, keys_for(chain), kind=IdentityError)
            assert "swapped" in str(error)
            (checkpoint / ".metadata").write_bytes(whole)
    assert row.cases == 40
    helpers.assert_same(helpers.load(state, checkpoint, keys_for(chain)), state)


def test_a_tensor_and_an_object_of_one_name(row: Row, tmp_path: Path) -> None:
    """A tensor without dimensions has no offset, as an object has none, and attached writers' ids are not compared:
    what is left is the kind.
    """
    states = {"tensor": {"x": torch.tensor(5.0)}, "object": {"x": "a string"}}
    made = {
        name: Checkpoint(tmp_path / name, state, writer="attached", keyed=False, chain=[Checksum()])
        for name, state in states.items()
    }
    for place, other in permutations(made.values()):
        (container,), (theirs,) = place.containers(), other.containers()
        row.refuse(other.folder.name, container.load, theirs.intact, kind=IdentityError)


def test_shards_of_one_tensor(row: Row, checkpoint: Path, chain: list[Any]) -> None:
    """Two shards differ in their offset only."""
    wanted = torch.cat([torch.zeros(4, 3), torch.ones(4, 3)])
    save_halves(checkpoint, wanted, chain)
    helpers.assert_same(helpers.load({"w": wanted}, checkpoint, keys_for(chain)), {"w": wanted})

    helpers.rewrite_index(checkpoint, lambda index: swap(*index["items"]["w"]["chunks"]))
    error = row.refuse("shards", helpers.load, {"w": wanted}, checkpoint, keys_for(chain), kind=IdentityError)
    assert "swapped" in str(error)


def save_halves(path: Path, whole: torch.Tensor, chain: list[Any]) -> None:
    save_shards(path, [{"w": rows(whole, rank, 2)} for rank in range(2)], lambda: chain)


def same_size(keyed: bool) -> list[Any]:
    """A chain under which equal sizes stay equal, so that only what is inside tells containers apart."""
    return [Checksum(), Encrypt(helpers.KEY)] if keyed else [Checksum()]


@pytest.mark.parametrize("writer", ["own", "attached"])
@pytest.mark.parametrize("keyed", [True, False])
def test_every_pair_of_containers(row: Row, tmp_path: Path, writer: str, keyed: bool) -> None:
    """Each container of two saves in the place of each other that has its size."""
    made = [
        Checkpoint(tmp_path / name, three(), writer=writer, keyed=keyed, chain=same_size(keyed))
        for name in ("one", "two")
    ]
    one = made[0]
    for place in one.containers():
        row.refuse_or_equal(place.name, one.right, place.load, place.intact)
        for origin, container in [(each, item) for each in made for item in each.containers()]:
            mine = origin is one and container.name == place.name
            if mine or len(container.intact) != len(place.intact):
                continue
            what = f"{container.name} of {origin.folder.name} for {place.name}"
            if writer == "own" or container.name != place.name:
                row.refuse(what, place.load, container.intact, kind=IdentityError)
            elif keyed:  # another save of the same values, under another data key
                row.refuse(what, place.load, container.intact, kind=AuthenticationError)


@pytest.mark.parametrize("writer", ["own", "attached"])
def test_every_pair_of_keyed_containers_made_out_for_their_new_place(row: Row, tmp_path: Path, writer: str) -> None:
    """With the identity of the place that they come to, and the salt or seal of either, under CRCs that are right."""
    checkpoint = Checkpoint(tmp_path / "one", three(), writer=writer, chain=same_size(True))
    containers = list(checkpoint.containers())
    for place, container in permutations(containers, 2):
        mine, theirs = take_container_apart(place.intact), take_container_apart(container.intact)
        for salt in (mine.salt, theirs.salt):
            for seal in (mine.seal, theirs.seal):
                made = theirs.change(identity=mine.identity, salt=salt, seal=seal).container()
                row.refuse((place.name, container.name), place.load, made, kind=(AuthenticationError, ContainerError))


@pytest.mark.parametrize("keyed", [False, True])
def test_items_of_an_attached_writer_without_an_index(row: Row, tmp_path: Path, keyed: bool) -> None:
    """Nothing gives the numbers of its containers, so that names have to tell items of one shape apart."""
    state = {"a": torch.zeros(9), "b": torch.ones(9)}
    target = Checkpoint(tmp_path / "one", state, writer="attached", keyed=keyed, chain=same_size(keyed))
    data = {name: target.data[start:stop] for name, (start, stop) in target.places.items()}
    assert len(data["a"]) == len(data["b"])
    options = {"keys": target.keys, "require": "bound"} if keyed else {}
    target.data_file.write_bytes(target.data.replace(data["a"], b"").replace(data["b"], data["b"] + data["a"]))
    for name in "ab":
        with streamxf.Checkpoint(target.folder, **options) as checkpoint:
            error = row.refuse(name, lambda name=name, read=checkpoint: read[name][:], kind=IdentityError)
        assert "swapped" in str(error)


# -- files, saves and checkpoints ------------------------------------------------------------------


@pytest.fixture
def saves(tmp_path: Path, chain: list[Any]) -> dict[str, Path]:
    """Saves of one program: two with one key, one of other values, one of other names, and one with another key."""
    plain = [codec for codec in chain if not isinstance(codec, ZStandard)]  # so that sizes do not depend on values
    other_key = [codec if not isinstance(codec, Encrypt) else Encrypt(helpers.OTHER_KEY) for codec in plain]
    states = {
        "first": (three(), plain),
        "again": (three(), plain),
        "later": ({name: value + 1 if name in "abc" else value for name, value in three().items()}, plain),
        "names": ({name.upper(): value for name, value in three().items()}, plain),
        "stranger": (three(), other_key),
    }
    for name, (state, codecs) in states.items():
        helpers.save(state, tmp_path / name, codecs)
    return {name: tmp_path / name for name in states}


def test_every_pair_of_data_files(row: Row, saves: dict[str, Path], chain: list[Any]) -> None:
    """An old data file under new metadata, and so on: the same size, another save."""
    for place, origin in permutations(saves.values(), 2):
        (file,), (theirs,) = helpers.data_files(place), helpers.data_files(origin)
        whole = file.read_bytes()
        assert len(whole) == theirs.stat().st_size
        shutil.copyfile(theirs, file)
        state = upper(three()) if place.name == "names" else three()
        key = None if keys_for(chain) is None else helpers.OTHER_KEY if place.name == "stranger" else helpers.KEY
        error = row.refuse((place.name, origin.name), helpers.load, state, place, key, kind=IdentityError)
        assert "swapped" in str(error)
        file.write_bytes(whole)
        helpers.load(state, place, key)


def test_every_pair_of_metadata(row: Row, saves: dict[str, Path], chain: list[Any]) -> None:
    """Metadata of another save, beside this one's data files under the names that it gives them."""
    keys = None if keys_for(chain) is None else [helpers.KEY, helpers.OTHER_KEY]
    for place, origin in permutations(saves.values(), 2):
        whole = (place / ".metadata").read_bytes()
        shutil.copyfile(origin / ".metadata", place / ".metadata")
        state = upper(three()) if origin.name == "names" else three()
        what = (place.name, origin.name)
        assert "missing" in str(row.refuse(what, helpers.load, state, place, keys, kind=MetadataError))
        (mine,), (theirs,) = helpers.data_files(place), helpers.data_files(origin)
        shutil.copyfile(mine, place / theirs.name)
        assert "swapped" in str(row.refuse(what, helpers.load, state, place, keys, kind=IdentityError))
        (place / theirs.name).unlink()
        (place / ".metadata").write_bytes(whole)
        helpers.load(upper(three()) if place.name == "names" else three(), place, keys)


def upper(state: dict[str, Any]) -> dict[str, Any]:
    return {name.upper(): value for name, value in state.items()}


def test_every_mixture_of_the_files_of_two_saves(row: Row, tmp_path: Path, chain: list[Any]) -> None:
    """Several files each, and any of them from the other save: what a folder may hold when two saves were mixed."""
    plain = [codec for codec in chain if not isinstance(codec, ZStandard)]
    state = {name: torch.full((2000,), float(number)) for number, name in enumerate("abc")}
    for name in ("old", "new"):
        helpers.save(state, tmp_path / name, plain, single_file_per_rank=False)
    old, new = helpers.data_files(tmp_path / "old"), helpers.data_files(tmp_path / "new")
    intact = [file.read_bytes() for file in new]
    others = [file.read_bytes() for file in old]
    assert len(new) == 3
    for chosen in product((False, True), repeat=len(new)):
        for file, own, other, swap in zip(new, intact, others, chosen, strict=True):
            file.write_bytes(other if swap else own)
        if any(chosen):
            row.refuse(chosen, helpers.load, state, tmp_path / "new", keys_for(chain), kind=IdentityError)
    for order in permutations(range(3)):
        for file, number in zip(new, order, strict=True):
            file.write_bytes(intact[number])
        if order != (0, 1, 2):
            row.refuse(order, helpers.load, state, tmp_path / "new", keys_for(chain), kind=IdentityError)


def test_files_of_two_ranks(row: Row, checkpoint: Path, chain: list[Any]) -> None:
    plain = [codec for codec in chain if not isinstance(codec, ZStandard)]
    save_halves(checkpoint, torch.cat([torch.zeros(40, 3), torch.ones(40, 3)]), plain)
    one, other = helpers.data_files(checkpoint)
    assert one.stat().st_size == other.stat().st_size
    first, second = one.read_bytes(), other.read_bytes()
    for left, right in ((second, first), (second, second), (first, first)):
        one.write_bytes(left)
        other.write_bytes(right)
        row.refuse("ranks", helpers.load, {"w": torch.zeros(80, 3)}, checkpoint, keys_for(chain), kind=IdentityError)


def test_an_item_of_the_same_place_in_another_ranks_file(row: Row, checkpoint: Path) -> None:
    """The right item, rightly placed and published, by a writer that did not write this file."""
    save_halves(checkpoint, torch.cat([torch.zeros(40, 3), torch.ones(40, 3)]), [Checksum()])
    file = helpers.data_files(checkpoint)[0]
    parts = take_container_apart(file.read_bytes())
    file.write_bytes(parts.change(identity=b"\7" * 16 + parts.identity[16:]).container())
    error = row.refuse("writer", helpers.load, {"w": torch.zeros(80, 3)}, checkpoint, None, kind=IdentityError)
    assert "another process or save" in str(error)


def test_unpublished_and_unbound_items_in_a_published_checkpoint(row: Row, tmp_path: Path) -> None:
    """What torch's own writer, or an attached one, made with the same codecs, in the place of a published item."""
    state = {"w": torch.zeros(30)}
    helpers.save(state, tmp_path / "own", [Checksum()])
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "stock", _extensions=[Checksum()]))
    dcp.save(state, storage_writer=streamxf.attach(dcp.FileSystemWriter(tmp_path / "attached"), [Checksum()]))
    (file,) = helpers.data_files(tmp_path / "own")

    for other, words in (("stock", "not bound"), ("attached", "not bound")):
        (theirs,) = helpers.data_files(tmp_path / other)
        shutil.copyfile(theirs, file)
        size = file.stat().st_size

        def change(index: Any, size: int = size) -> None:
            index["files"][0]["size"] = size
            index["items"]["w"]["chunks"][0].update(at=0, bytes=size)

        helpers.rewrite_index(tmp_path / "own", change)
        error = row.refuse(other, helpers.load, state, tmp_path / "own", None, kind=IdentityError)
        assert words in str(error)
