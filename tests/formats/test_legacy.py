"""Files of ``torch.save`` from before version 1.6, which packages still ship: read, bounded, and never trusted."""

import argparse
import io
import pickle
import re
import resource
import struct
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

import streamxf
from streamxf.errors import ContainerError, PolicyError, StreamxfError, UnsupportedError
from streamxf.torchsave import legacy
from streamxf.torchsave.archive import Archive
from tests.altered import flipped
from tests.archives import old_form, redirected, saved
from tests.dcp.helpers import assert_same
from tests.objects.pickles import number

from .samples import in_pieces, open_at
from .test_torchfile import FORMS, read

STATE: dict[str, Any] = {
    "model": {"w": torch.arange(12.0).reshape(3, 4), "tied": torch.ones(5, dtype=torch.bfloat16)},
    "epoch": 3,
    "betas": (0.9, 0.999),
}
STATE["model"]["half"] = STATE["model"]["tied"][2:]


def test_every_tool_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the pickle is longer than what is read first."""
    path = tmp_path / "old.pt"
    path.write_bytes(old_form(STATE))
    torch.save(STATE, tmp_path / "new.pt")
    wanted = read(tmp_path / "new.pt")
    for head in (2**20, 37):
        monkeypatch.setattr(legacy, "_HEAD", head)
        assert_same(read(path), wanted)
    assert streamxf.diff(path, tmp_path / "new.pt").same
    streamxf.pack(path, tmp_path / "packed")
    assert streamxf.diff(path, tmp_path / "packed").same
    streamxf.unpack(tmp_path / "packed", tmp_path / "back.pt")
    assert (tmp_path / "back.pt").read_bytes() == path.read_bytes()
    streamxf.unpack(path, tmp_path / "model.safetensors", prefix="model.")
    assert streamxf.diff(path, tmp_path / "model.safetensors", prefixes=("model.", "")).same


def old_file(pickled: bytes, keys: list[str], storages: bytes) -> bytes:
    """A file with any pickle and storages."""
    facts: list[Any] = [{"protocol_version": 1001, "little_endian": True, "type_sizes": {}}]
    return b"".join([legacy.MAGIC, legacy._VERSION, *(pickle.dumps(each, 2) for each in facts)]) + (
        b"\x80\x02" + pickled + b"." + pickle.dumps(keys, 2) + storages
    )


def short(value: str) -> bytes:
    """A string of Python 2."""
    return b"U" + bytes([len(value)]) + value.encode()


def tensor(count: bytes = b"K\x02", kind: str = "FloatStorage", view: bytes = b"N", key: bytes = b"U\x017") -> bytes:
    """One of `count` elements in a storage of as many, by the function that torch had before version 0.4."""
    storage = b"(" + short("storage") + f"ctorch\n{kind}\n".encode() + key + short("cuda:0") + count + view + b"tQ"
    return b"ctorch._utils\n_rebuild_tensor\n(" + storage + b"K\x00" + count + b"\x85K\x01\x85tR"


ELEMENTS = struct.pack("<q2f", 2, 1.5, -2)


def test_a_file_of_python_2(tmp_path: Path) -> None:
    """Its strings are bytes, and an OrderedDict is made of a list of lists."""
    ordered = b"ccollections\nOrderedDict\n](](" + short("w") + tensor() + b"ee\x85R"
    path = tmp_path / "old.pth"
    path.write_bytes(old_file(ordered, ["7"], ELEMENTS))
    wanted = torch.load(path, map_location="cpu", weights_only=False)
    assert wanted["w"].tolist() == [1.5, -2]
    assert_same(read(path), dict(wanted))


def entry(value: bytes) -> bytes:
    return b"}" + short("w") + value + b"s"


HUGE = number(2**60)
HOSTILE: dict[str, bytes] = {
    "a storage that is larger than the file": old_file(entry(tensor(HUGE)), ["7"], struct.pack("<q", 2**60)),
    "a storage of negative size": old_file(entry(tensor(number(-2))), ["7"], struct.pack("<q", -2)),
    "a storage that says another size": old_file(entry(tensor()), ["7"], struct.pack("<q2f", 3, 0, 0)),
    "a storage that is not listed": old_file(entry(tensor()), [], ELEMENTS),
    "a storage that is listed twice": old_file(entry(tensor()), ["7", "7"], ELEMENTS * 2),
    "a storage that is unknown": old_file(entry(tensor()), ["8"], ELEMENTS),
    "storages that are numbers": old_file(entry(tensor()), [7], ELEMENTS),  # type: ignore[list-item]
    "a storage of two kinds": old_file(
        b"(" + tensor() + tensor(kind="IntStorage") + b"l}" + short("w") + b"Ns", ["7"], ELEMENTS
    ),
    "a part of a storage": old_file(entry(tensor(view=b"(" + short("8") + b"K\x00K\x02t")), ["7"], ELEMENTS),
    "something else than a storage": old_file(entry(short("w") + b"\x85Q"), [], b""),
    "text that is not there": old_file(b"X\xff\xff\xff\xff", [], b""),
    "long text that is not there": old_file(b"\x8d" + b"\xff" * 7 + b"\x7f", [], b""),
    "a far place in the memo": old_file(b"}r\xff\xff\xff\x7f", [], b""),
    "many objects": old_file(b"](" + b"}" * 2_000_000 + b"e", [], b""),
    "another version": legacy.MAGIC + b"\x80\x02M\xea\x03." + old_form(STATE)[21:],
}


@pytest.mark.parametrize("how", HOSTILE)
def test_what_torch_save_did_not_write(tmp_path: Path, how: str) -> None:
    path = tmp_path / "old.pt"
    path.write_bytes(HOSTILE[how])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for tool in (streamxf.inspect, lambda path: streamxf.pack(path, tmp_path / "packed")):
        with pytest.raises(ContainerError, match="not an intact file"):
            tool(path)
    assert streamxf.verify(path).damaged
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 2**10, "KiB"


def test_a_file_that_was_cut_anywhere(tmp_path: Path) -> None:
    path, data = tmp_path / "old.pt", old_form(STATE)
    for stop in range(len(legacy.MAGIC), len(data), 3):
        path.write_bytes(data[:stop])
        with pytest.raises(ContainerError, match="not an intact file"):
            read(path)


def test_a_file_of_holes_is_not_read(tmp_path: Path) -> None:
    """A pickle of a string that is a hole of 40 GiB."""
    path = tmp_path / "old.pt"
    with path.open("wb") as file:
        file.write(old_file(b"\x8d" + struct.pack("<q", 40 * 2**30), [], b"")[:-20])
        file.truncate(41 * 2**30)
    with pytest.raises(ContainerError, match="holes"):
        read(path)


@pytest.mark.parametrize("bit", [1, 64])
def test_a_flipped_bit_is_refused_or_reads_as_torch_reads_it(tmp_path: Path, bit: int) -> None:
    path, data = tmp_path / "old.pt", old_form(STATE)
    for at in range(len(data)):
        path.write_bytes(flipped(data, at, bit))
        try:
            found = read(path)
        except StreamxfError:
            continue
        try:
            theirs, _ = flatten_state_dict(torch.load(path, weights_only=True))
        except Exception:  # of any kind
            continue
        assert [*map(shown, found.items())] == [*map(shown, theirs.items())], at


def shown(item: tuple[str, Any]) -> tuple[str, str]:
    name, value = item
    return name, repr((value.dtype, value.tolist()) if isinstance(value, torch.Tensor) else value)


# -- objects beside tensors, in either form ------------------------------------------------------------------------


@FORMS
def test_objects_of_a_file_saved_on_a_gpu_are_made_here(tmp_path: Path, zipped: bool) -> None:
    tensors = {"w": torch.ones(8), "pair": (torch.arange(3.0), 1)}
    state = {**tensors, "device": torch.device("cuda", 7), "array": np.arange(4), "kinds": {torch.float16}}
    data = old_form(state) if not zipped else saved_elsewhere(state)
    path = tmp_path / "gpu.pt"
    path.write_bytes(data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0") if not zipped else data)
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(path, weights_only=False)
    assert streamxf.diff(path, path).same
    streamxf.pack(path, tmp_path / "packed")
    assert streamxf.diff(path, tmp_path / "packed").same
    with open_at(path) as reader:
        assert reader.load_object("device") == torch.device("cuda:7")
        assert_same(reader.load_object("pair"), tensors["pair"])


def saved_elsewhere(state: Any) -> bytes:
    """A zip file whose tensors were on a GPU, as its pickle says."""

    data = saved(state)
    pickled = Archive(io.BytesIO(data), len(data)).pickled
    return redirected(data, {"data.pkl": pickled.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")})


@FORMS
def test_an_object_reads_no_tensors_but_its_own(tmp_path: Path, zipped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    large = torch.ones(2**16)
    state = {"w": large, "device": torch.device("cpu"), "pair": (torch.ones(3), 1), "c": torch.ones(2).to_sparse()}
    torch.save(state, tmp_path / "model.pt", _use_new_zipfile_serialization=zipped)
    read_sizes: list[int] = []
    taken = Archive.read_into

    def counted(self: Any, name: str, out: memoryview) -> None:
        read_sizes.append(len(out))
        taken(self, name, out)

    monkeypatch.setattr(Archive, "read_into", counted)
    with open_at(tmp_path / "model.pt") as reader:
        assert_same(reader.load_object("pair"), state["pair"])
        assert reader.load_object("device") == torch.device("cpu")
        assert reader.load_object("c").to_dense().equal(torch.ones(2))
        assert_same(in_pieces(reader, "w", 2**16), large)
    assert sorted(read_sizes) == [8, 12, 16], "what is sparse has indices, too"


class Layer(torch.Tensor):
    """A subclass that is not allowed."""


@FORMS
def test_an_object_of_a_foreign_class_is_kept_as_bytes_and_named(tmp_path: Path, zipped: bool) -> None:
    arguments = argparse.Namespace(lr=0.1, shape=torch.ones(2))
    state = {
        "w": torch.ones(8),
        "args": {"inner": [(arguments, 5)]},
        "kind": argparse.Namespace,
        "layer": (torch.ones(3).as_subclass(Layer),),
        "array": np.arange(4),
        "device": torch.device("cpu"),
    }
    path = tmp_path / "model.pt"
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    (note,) = streamxf.pack(path, tmp_path / "packed").notes
    assert "kept 3 items" in note
    assert "args.inner, kind, layer" in note
    assert "argparse.Namespace" in note
    with streamxf.Checkpoint(tmp_path / "packed") as packed:
        assert {"w", "array", "device"} <= packed.keys()
        assert not {"args.inner", "kind", "layer"} & packed.keys()
    found = streamxf.diff(path, tmp_path / "packed")
    assert not found.same
    assert not found.differs
    assert found.incomparable.keys() == {"args.inner", "kind", "layer"}
    streamxf.unpack(tmp_path / "packed", tmp_path / "back.pt")
    assert (tmp_path / "back.pt").read_bytes() == path.read_bytes()
    with open_at(path) as reader:
        assert np.array_equal(reader.load_object("array"), state["array"])  # type: ignore[arg-type]
        for name in ("args.inner", "kind", "layer"):
            with pytest.raises(PolicyError, match=r"argparse\.Namespace"):
                reader.load_object(name)


def test_a_tensor_that_is_more_than_elements_is_not_packed_as_an_object_that_no_reader_takes(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(8), "s": torch.eye(3).to_sparse()}, tmp_path / "model.pt")
    (note,) = streamxf.pack(tmp_path / "model.pt", tmp_path / "packed").notes
    assert "restores it: s;" in note
    assert streamxf.diff(tmp_path / "model.pt", tmp_path / "packed").incomparable.keys() == {"s"}


@pytest.mark.parametrize(("form", "protocol"), [*product(["old"], [0, 1, 3, 4, 5]), *product(["zip"], [0, 1])])
def test_other_pickle_protocols_are_named(tmp_path: Path, form: str, protocol: int) -> None:
    path, options = tmp_path / "old.pt", {"_use_new_zipfile_serialization": form == "zip", "pickle_protocol": protocol}
    torch.save({"w": torch.ones(3)}, path, **options)
    for call in (streamxf.inspect, lambda it: streamxf.pack(it, tmp_path / "packed")):
        with pytest.raises(UnsupportedError, match="another pickle protocol"):
            call(path)
    if form == "zip":
        assert re.search(r"no damage found .*another pickle protocol", str(streamxf.verify(path)))
    else:
        with pytest.raises(UnsupportedError, match="another pickle protocol"):
            streamxf.verify(path)
