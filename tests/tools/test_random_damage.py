"""Random damage: `verify` notices whatever was changed, what it calls intact loads as it was saved, whatever `salvage`
returns is what was saved, and what they raise has a type.
"""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamxf import load_intact, verify
from streamxf.errors import StreamxfError
from tests.altered import flipped
from tests.dcp.helpers import assert_same, blank, error_of, load, sections_of
from tests.dcp.shards import rows, save_shards
from tests.tools.salvage.test_salvage import CHAINS, flat, keys_of

RANKS = 2
# what, and where in the file and how far, in thousandths of its size
FAULTS = st.tuples(
    st.sampled_from(["flip", "zero", "cut", "repeat", "remove", "delete", "copy"]),
    st.integers(0, 999),
    st.integers(0, 300),
    st.integers(0, 7),
)


def state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    return {
        "w": torch.randn(8, 3, generator=generator),
        "half": torch.randn(40, generator=generator).to(torch.bfloat16),
        "big": torch.randint(0, 9, (40_000,), generator=generator),
        "nested": {"t": torch.ones(5), "text": "ünïcode"},
        "step": 17,
    }


@cache
def saved(chain: str) -> Path:
    """A checkpoint of two ranks, and the files of another save beside it, which nobody may see."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    whole = state()
    parts: list[dict[str, Any]] = [
        {"w": rows(whole["w"], rank, RANKS), "big": rows(whole["big"], rank, RANKS)} for rank in range(RANKS)
    ]
    parts[0] |= {"half": whole["half"], "nested": whole["nested"]}
    parts[1] |= {"step": whole["step"]}
    save_shards(folder / "a", parts, CHAINS[chain])
    other = [{name: item if name == "nested" else _shifted(item) for name, item in part.items()} for part in parts]
    save_shards(folder / "b", other, CHAINS[chain])
    for file in (folder / "b").glob("*.distcp"):
        shutil.copy(file, folder / "a")
    return folder / "a"


def _shifted(item: Any) -> Any:
    if isinstance(item, int):
        return item + 1
    if isinstance(item, torch.Tensor):
        return item + 1
    return type(item)(item.tensor + 1, item.offsets, item.whole)


def hurt(file: Path, fault: tuple[str, int, int, int]) -> None:
    what, at, length, bit = fault
    data = file.read_bytes()
    begin = len(data) * at // 1000
    end = min(len(data), begin + 1 + len(data) * length // 1000)
    if what == "flip" and data:
        data = flipped(data, begin, 1 << bit)
    elif what == "zero":
        data = data[:begin] + bytes(end - begin) + data[end:]
    elif what == "cut":
        data = data[:begin]
    elif what == "repeat":
        data = data[:end] + data[begin:]
    elif what == "remove":
        data = data[:begin] + data[end:]
    elif what == "copy":  # the beginning stands there once more
        data = data[:begin] + data[: end - begin] + data[end:]
    if what == "delete":
        file.unlink()
    else:
        file.write_bytes(data)


def check_verify_and_load(path: Path, keys: Any, changed: set[Path], pickled: bytes) -> None:
    metadata = path / ".metadata"
    if metadata.exists() and metadata.read_bytes() == pickled:
        return  # what is left is what torch would have written
    loaded: list[Any] = []
    error = error_of(lambda: loaded.append(load(state(), path, keys)))
    assert error is None or isinstance(error, StreamxfError) or not metadata.exists()
    for found in loaded:
        assert_same(found, state())
    assert not error or changed
    assert error or changed <= {metadata}
    try:
        report = verify(path, keys=keys)
    except StreamxfError:
        assert metadata in changed
        assert keys is not None or not metadata.exists()  # the wrapped key, or its id; or hardly anything is left
    else:
        assert report.ok == (not changed)
        assert metadata not in changed or ".metadata" in {damage.file for damage in report.damaged}


@pytest.mark.parametrize("chain", CHAINS)
@settings(settings.get_profile("disk"))
@given(st.lists(st.tuples(st.integers(0, 4), FAULTS), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_random_faults(chain: str, faults: list[Any], metadata_too: bool, into: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        shutil.copytree(saved(chain), path)
        files = sorted(path.iterdir(), key=lambda file: file.name != ".metadata")
        own = [file for file in files[1:] if file.name.encode() in files[0].read_bytes()]
        intact = {file: file.read_bytes() for file in (files[0], *own)}
        pickled = sections_of(path)[0]
        for number, fault in faults:
            file = files[number] if metadata_too or number else files[1]
            if file.exists():
                hurt(file, fault)
        changed = {file for file, data in intact.items() if not file.exists() or file.read_bytes() != data}
        check_verify_and_load(path, keys_of(CHAINS[chain]), changed, pickled)
        target = blank(state()) if into else None
        try:
            found = load_intact(path, target, keys=keys_of(CHAINS[chain]), without_metadata=metadata_too)
        except StreamxfError:
            if not metadata_too:
                raise
            return
        if metadata_too and not any(file.exists() for file in own):  # then what lies beside it is all there is
            assert "is what you vouched for" in str(found)
            return
        wanted = flat(state())
        loaded = flat(found.state_dict, state()) if found.save_ids or into else found.state_dict
        for name in found.loaded:
            assert_same(loaded[name], wanted[name], name)
        assert not found.partial
        if not metadata_too:
            assert set(found.loaded) | set(found.lost) == set(wanted)
        if into:
            old = flat(blank(state()), state())
            for name in set(wanted) - set(found.loaded):
                assert_same(loaded[name], old[name], name)
