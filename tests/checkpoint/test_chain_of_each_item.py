"""A chain for each item, by patterns of names: who writes it, and all that reads it."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.chain import Chain, Chains
from streamxf.errors import ChainError, ParameterError, UnsupportedError
from tests.reference_decoder import load as reference_load
from tests.reference_keys import Reader, aes_key

KEY = streamxf.Key(bytes(range(32)))
MIXED = {"*": "floatzip+checksum", "embedding.*": "raw", "*.ids": "zstd:level=9", "note": ""}
KEYED = {"*": "floatzip+encrypt", "*.ids": "zstd+encrypt"}
PASSED = {
    "embedding.ids": ("streamxf.zstd/1",),
    "embedding.weight": ("streamxf.raw/1",),
    "layer.weight": ("streamxf.floatzip/1", "streamxf.checksum/1"),
    "note": (),
    "step": ("streamxf.floatzip/1", "streamxf.checksum/1"),
}


def state() -> dict[str, Any]:
    return {
        "layer.weight": torch.randn(2**16, generator=torch.Generator().manual_seed(1)),
        "embedding.weight": torch.arange(2**10, dtype=torch.float32).reshape(32, 32),
        "embedding.ids": torch.arange(2**12),
        "note": "text",
        "step": 7,
    }


def chains_in(path: Path, keys: Any = None) -> dict[str, tuple[str, ...]]:
    with streamxf.Checkpoint(path, keys=keys) as checkpoint:
        items = checkpoint.stored.values()
        return {item.name: getattr(item, "chunks", item.places)[0].chain for item in items}


def assert_loads(path: Path, keys: Any = None, reader: Any = None) -> None:
    found = {name: torch.zeros_like(value) if torch.is_tensor(value) else None for name, value in state().items()}
    dcp.load(found, storage_reader=reader or streamxf.FileSystemReader(path, keys=keys))
    for name, value in state().items():
        assert torch.equal(found[name], value) if torch.is_tensor(value) else found[name] == value


def by_dcp(path: Path, chain: Any, **how: Any) -> Any:
    writer = streamxf.FileSystemWriter(path, chain=chain, **how)
    dcp.save(state(), storage_writer=writer)
    return writer.report


def by_hand(path: Path, chain: Any, **how: Any) -> Any:
    with streamxf.CheckpointWriter(path, chain, recipients=how.pop("keys", None), **how) as writer:
        for name, value in state().items():
            writer[name] = value
    return writer.report


@pytest.mark.parametrize("save", [by_dcp, by_hand])
@pytest.mark.parametrize("threads", [1, 3])
def test_each_item_passes_its_own(tmp_path: Path, save: Any, threads: int) -> None:
    report = save(tmp_path, MIXED, **({"thread_count": threads} if save is by_dcp else {}))
    assert chains_in(tmp_path) == PASSED
    assert report.patterns == {"*": 2, "embedding.*": 1, "*.ids": 1, "note": 1}
    assert "items by chain of embedding.*" in str(report)
    assert_loads(tmp_path)
    assert_loads(tmp_path, reader=dcp.FileSystemReader(tmp_path, _extension_registry=streamxf.Registry()))
    with streamxf.Checkpoint(tmp_path, framework="numpy") as checkpoint:
        assert checkpoint["embedding.weight"].mmap()[3, 4] == 100
        assert np.array_equal(checkpoint["layer.weight"][5:9], state()["layer.weight"][5:9].numpy())
        with pytest.raises(UnsupportedError, match=r"through streamxf\.zstd"):
            checkpoint["embedding.ids"].mmap()
    assert streamxf.verify(tmp_path).ok
    decoded = reference_load(tmp_path, Reader([]))
    assert decoded["embedding.weight"].data == state()["embedding.weight"].numpy().tobytes()
    found = streamxf.inspect(tmp_path).chains
    assert {*found} == {*PASSED.values()}


@pytest.mark.parametrize("save", [by_dcp, by_hand])
def test_all_encrypt_under_one_data_key(tmp_path: Path, save: Any) -> None:
    save(tmp_path, KEYED, keys=KEY)
    assert {chain[-1] for chain in chains_in(tmp_path, KEY).values()} == {"streamxf.encrypt/1"}
    assert_loads(tmp_path, KEY)
    assert reference_load(tmp_path, Reader([aes_key(KEY.reveal())]))
    assert streamxf.verify(tmp_path, keys=KEY).ok
    assert_loads(tmp_path, reader=dcp.FileSystemReader(tmp_path, _extension_registry=streamxf.Registry(keys=KEY)))


def test_damage_is_found_in_each(tmp_path: Path) -> None:
    by_hand(tmp_path, MIXED)
    with streamxf.Checkpoint(tmp_path) as checkpoint:
        places = [item.places[0] for item in checkpoint.stored.values()]
    for place in places:
        path = tmp_path / place.file
        data = path.read_bytes()
        at = place.at + place.size // 2
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert len(streamxf.verify(tmp_path).damaged) == 1
        path.write_bytes(data)


def test_a_raw_shard_behind_blocks_on_their_way_has_its_own_bytes(tmp_path: Path) -> None:
    """Blocks that workers encode are written before what is bare, and in their place."""
    tensors = {f"{kind}.{number}": torch.full((2**20,), number + 0.5) for number in range(6) for kind in ("a", "b")}
    with streamxf.CheckpointWriter(tmp_path, {"*": "zstd", "b.*": "raw"}) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor, copy=False)
    with streamxf.Checkpoint(tmp_path) as checkpoint:
        assert all(torch.equal(checkpoint[name].read(), tensor) for name, tensor in tensors.items())
    assert streamxf.verify(tmp_path).ok


def test_a_copy_has_chains_of_its_own(tmp_path: Path) -> None:
    source, target, back = (tmp_path / name for name in ("source", "target", "back"))
    by_dcp(source, MIXED)
    done = streamxf.transcode(source, target, {"*": "lz4", "embedding.*": ""})
    assert done.chain == "*=lz4:level=0, embedding.*="
    assert {name: chain for name, chain in chains_in(target).items() if chain} == dict.fromkeys(
        ("layer.weight", "note", "step"), ("streamxf.lz4/1",)
    )
    assert_loads(target)
    code = ["transcode", str(target), str(back), "--chain", "zstd:level=3", "--chain", "embedding.*=raw"]
    subprocess.run([sys.executable, "-m", "streamxf", *code], check=True, capture_output=True)
    assert chains_in(back)["embedding.ids"] == ("streamxf.raw/1",)
    assert chains_in(back)["step"] == ("streamxf.zstd/1",)
    assert streamxf.diff(source, back).same


def test_what_is_left_is_salvaged(tmp_path: Path) -> None:
    by_dcp(tmp_path / "source", MIXED)
    streamxf.salvage(tmp_path / "source", tmp_path / "target")
    assert_loads(tmp_path / "target")


def test_install_takes_a_mapping(tmp_path: Path) -> None:
    with streamxf.install(MIXED) as installation:
        assert str(installation.chain) == "*=floatzip+checksum, embedding.*=raw, *.ids=zstd:level=9, note="
        dcp.save(state(), checkpoint_id=tmp_path)
    assert chains_in(tmp_path) == PASSED


def test_the_environment_names_several(tmp_path: Path) -> None:
    save = f"dcp.save({{'a': torch.ones(9), 'b': 1}}, checkpoint_id={str(tmp_path)!r})"
    code = f"import torch, torch.distributed.checkpoint as dcp; {save}"
    environment = os.environ | {"STREAMXF_CHAIN": "zstd; a=raw", "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert chains_in(tmp_path) == {"a": ("streamxf.raw/1",), "b": ("streamxf.zstd/1",)}


def test_which_pattern_counts() -> None:
    chains = Chains.chosen({"*": "checksum", "a.*": "floatzip", "*.b": "raw", "[c]*": ""})
    found = {name: str(chains.for_item(name)) for name in ("a.b", "a.c", "c", "[c]d", "x\n.b", "")}
    assert found == {"a.b": "raw", "a.c": "floatzip", "c": "checksum", "[c]d": "", "x\n.b": "raw", "": "checksum"}
    assert str(Chains.chosen({"a": "raw"}).for_item("b")) == "floatzip"
    assert Chains.by_text(["zstd:level=3"]) == "zstd:level=3"
    assert Chains.by_text([]) is None
    assert Chains.by_text(["lz4", "a.*=zstd:level=3"]) == {"*": "lz4", "a.*": "zstd:level=3"}


@pytest.mark.parametrize(
    ("chain", "error", "text"),
    [
        ({"*": [streamxf.Encrypt(KEY)], "a": "raw"}, ChainError, "if one chain encrypts, all do"),
        ({"a": "lz4+encrypt"}, ParameterError, "does not encrypt"),
        ({"*": [streamxf.Encrypt(KEY)], "a": [streamxf.Encrypt(bytes(range(1, 33)))]}, ChainError, "for the same keys"),
        ({"a": "raw", "*": "lz4"}, ParameterError, "stands first"),
        ({1: "raw"}, ParameterError, "patterns of items' names"),
        ({"a": {"b": "raw"}}, ChainError, "one chain is needed"),
    ],
)
def test_what_is_refused(tmp_path: Path, chain: Any, error: type[Exception], text: str) -> None:
    keys = KEY if "encrypt" in str(chain) and "Encrypt" not in str(chain) else None
    with pytest.raises(error, match=text):
        streamxf.FileSystemWriter(tmp_path, chain=chain, keys=keys)


def test_a_file_has_one_chain() -> None:
    with pytest.raises(ChainError, match="one chain is needed"):
        streamxf.open(io.BytesIO(), "wb", chain={"*": "lz4"})  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="two chains for a"):
        Chains.by_text(["a=lz4", "a=raw"])
    with pytest.raises(UnsupportedError, match="one chain for all items"):
        streamxf.attach(dcp.FileSystemWriter("nowhere"), Chains.chosen(MIXED))
    assert Chain.of("lz4") == Chain.parse("lz4")
