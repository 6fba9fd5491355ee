"""`consolidate`: an increment that shares files by links, or names those of others, becomes whole by itself."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamxf
from streamxf import SaveMemory, Storage
from streamxf.errors import MetadataError, ParameterError, PolicyError
from streamxf.manager.pins import pin_base
from streamxf.places import open_storage
from streamxf.reading import Access, read_metadata
from tests.cli.command import Run
from tests.storage.stores import MemoryStorage
from tests.tools.convert.child import STEPS, kills
from tests.tools.convert.test_kill import TOUCHES

FROZEN = np.arange(50_000, dtype="float32")
KEY, OTHER = streamxf.Key(bytes(range(32))), streamxf.Key(bytes(range(1, 33)))
SURE = {"links": False, "stored": True, "in_order": True, "fresh": True}


@pytest.fixture(params=["links", "no links", "store"])
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "store":
        return MemoryStorage().told({"in_one_step": True})
    return open_storage(tmp_path / "run", abilities=SURE if request.param == "no links" else None)


def save(run: Storage, *names: str, **how: Any) -> None:
    memory, base = SaveMemory(), None
    for name in names:
        place = run.child(name)
        writer = streamxf.CheckpointWriter(place, memory=memory, base=base, **how)
        writer.pin = pin_base
        with writer:
            writer["frozen"] = FROZEN
            writer["name"] = np.frombuffer(name.encode() * 1000, "uint8")
            writer["plain"] = {"name": name}
        base = run.child(name)
    assert shared(run.child(names[-1]))


def shared(place: Storage) -> bool:
    index = read_metadata(place, ".metadata", Access(), listing="root").index
    return index is not None and index.bases is not None


def assert_holds(place: Storage, **how: Any) -> None:
    with streamxf.Checkpoint(place, framework="numpy", **how) as checkpoint:
        assert np.asarray(checkpoint["frozen"].read()).tobytes() == FROZEN.tobytes()
        assert np.asarray(checkpoint["name"].read()).tobytes() == place.name.encode() * 1000
        assert checkpoint["plain"].read() == {"name": place.name}
    assert streamxf.verify(place, **how).ok


def remove(place: Storage) -> None:
    place.remove([*place.names()])


def test_it_needs_no_other_one_any_more(runs: Storage) -> None:
    save(runs, "step-1", "step-2", "step-3", chain={"*": "floatzip+checksum", "name": "zstd:level=1", "plain": ""})
    before = streamxf.inspect(runs.child("step-3"))
    old = before.contents.save_ids
    done = streamxf.consolidate(runs.child("step-3"))
    assert done is not None
    assert done.save_ids != old
    assert not shared(runs.child("step-3"))
    assert streamxf.inspect(runs.child("step-3")).chains.keys() == before.chains.keys()
    assert {name[:11] for name in runs.child("step-1").names() if "pin" in name} <= {".streamxf-p"}
    assert not [name for name in runs.child("step-1").names() if name.endswith("-step-3")]
    assert streamxf.consolidate(runs.child("step-3")) is None
    assert_holds(runs.child("step-2"))
    for name in ("step-1", "step-2"):
        remove(runs.child(name))
    assert_holds(runs.child("step-3"))


def test_files_of_hard_links_have_one_name_then(tmp_path: Path) -> None:
    run = open_storage(tmp_path)
    save(run, "step-1", "step-2")
    streamxf.consolidate(tmp_path / "step-2")
    assert {path.stat().st_nlink for path in tmp_path.glob("*/*.distcp")} == {1}
    assert not streamxf.clean(tmp_path / "step-2").removed
    sizes = [sum(path.stat().st_size for path in folder.glob("*.distcp")) for folder in tmp_path.iterdir()]
    assert max(sizes) < 1.1 * min(sizes)


def test_it_stays_encrypted_for_the_same_readers(runs: Storage) -> None:
    signer = streamxf.SigningKey.generate()
    encrypt = streamxf.Encrypt([KEY, OTHER], signer=signer)
    save(runs, "step-1", "step-2", chain=[streamxf.FloatZip(), encrypt])
    place, trusted = runs.child("step-2"), {"keys": KEY, "trust": signer.verify_key}
    with pytest.raises(PolicyError, match=r"has to be signed again \(signer\)"):
        streamxf.consolidate(place, recipients=OTHER, **trusted)
    with pytest.raises(ParameterError, match=f"encrypted to {OTHER.id}, too"):
        streamxf.consolidate(place, signer=signer, **trusted)
    third = streamxf.Key.generate()
    with pytest.raises(ParameterError, match=rf"{third.id} cannot read it now.*streamxf rekey"):
        streamxf.consolidate(place, recipients=[OTHER, third], signer=signer, **trusted)
    assert streamxf.consolidate(place, recipients=OTHER, signer=signer, **trusted) is not None
    remove(runs.child("step-1"))
    assert_holds(place, **trusted)
    assert_holds(place, keys=OTHER, trust=signer.verify_key)


def test_what_is_in_clear_is_not_encrypted_by_it(runs: Storage) -> None:
    signer = streamxf.SigningKey.generate()
    save(runs, "step-1", "step-2", signer=signer)
    with pytest.raises(ParameterError, match=r"cannot read it now.*transcode"):
        streamxf.consolidate(runs.child("step-2"), recipients=KEY, signer=signer)
    assert streamxf.consolidate(runs.child("step-2"), signer=signer, trust=signer.verify_key) is not None
    remove(runs.child("step-1"))
    assert_holds(runs.child("step-2"), trust=signer.verify_key)


def test_what_lacks_its_base_stays_as_it_is() -> None:
    runs = MemoryStorage().told({"in_one_step": True})
    save(runs, "step-1", "step-2")
    remove(runs.child("step-1"))
    before = runs.child("step-2").names()
    with pytest.raises(MetadataError, match="missing"):
        streamxf.consolidate(runs.child("step-2"))
    assert before.items() <= runs.child("step-2").names().items()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("links", [True, False])
def test_a_kill_leaves_the_old_one_or_the_new_one(tmp_path: Path, step: int, links: bool) -> None:
    run = open_storage(tmp_path / "run", abilities=None if links else SURE)

    def fresh() -> None:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        save(run, "step-1", "step-2")

    fresh()
    for _ in kills(step, TOUCHES, lambda: streamxf.consolidate(run.child("step-2"), file_size=100_000), fresh):
        for name in ("step-1", "step-2"):
            assert_holds(run.child(name))
        streamxf.consolidate(run.child("step-2"), file_size=100_000)
        assert not shared(run.child("step-2"))
        remove(run.child("step-1"))
        assert_holds(run.child("step-2"))


def test_the_command_says_what_it_did(tmp_path: Path, run: Run) -> None:
    save(open_storage(tmp_path), "step-1", "step-2")
    done = run("consolidate", tmp_path / "step-2", "--json")
    assert done.json["files"] == 1
    assert "nothing changed" in run("consolidate", tmp_path / "step-2").out
