"""Pickles that would take memory or time out of proportion, and files that torch.save did not write.

T2 of the threat model: whoever writes to the storage without a key. Of all of them nothing is begun.
"""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from streamxf.errors import ContainerError, MetadataError, PolicyError
from streamxf.torchsave.objects import Objects
from tests.archives import old_form, saved
from tests.cli import preloaded
from tests.dcp.helpers import assert_same, data_files, index_of, load, load_with, refused, rewrite_index, rewrite_pickle
from tests.vectors.recipes.world import crcs_of

from .pickles import archive, call, number, tensor, text
from .test_policy import HINTS, READERS, WRITERS

HUGE = 2**40
TUPLES = b"K\x01" + b"q\x00h\x00\x86" * 60
TWINS = text("x" * 2**20) + b"q\x00N" + text("x" * 2**20) + b"q\x01N"
HEX = b"h\x00h\x01" + text("hex") + b"\x86Rq\x01"
UNSTORED = b"(" + text("storage") + b"ctorch\nByteStorage\n" + text("9") + text("cpu") + b"K\x04tQ"
PICKLES: dict[str, bytes] = {
    "bytearray of a size": call("builtins.bytearray", number(HUGE)),
    "bytes of a size": call("builtins.bytes", number(HUGE)),
    "bytes doubled by hex": b"c_codecs\nencode\nq\x00" + text("ab") + b"q\x01" + HEX * 60,
    "tensor of a size": call("torch.Tensor", number(HUGE)),
    "new tensor of a size": b"ctorch\nFloatTensor\n(" + number(HUGE) + b"t\x81",
    "storage of a size": call("torch.storage.UntypedStorage", number(HUGE)),
    "storage that is larger than stored": tensor(HUGE, 4) + b"\x85",
    "storage that is smaller than stored": tensor(2, 2) + b"\x85",
    "tensor that is larger than its storage": tensor(4, HUGE) + b"\x85",
    "tensor at a far offset": tensor(4, 4, offset=HUGE) + b"\x85",
    "tensor of negative size": tensor(4, -1) + b"\x85",
    "tensor expanded and copied": call(
        "torch._utils._rebuild_device_tensor_from_cpu_tensor",
        tensor(4, HUGE, 0) + b"ctorch\nfloat64\n" + text("cpu") + b"\x89",
    ),
    "call within a call": call(
        "torch._tensor._rebuild_from_type_v2", b"cbuiltins\nbytearray\ncbuiltins\nbytearray\n" + number(HUGE) + b"\x85N"
    ),
    "nested tensor": call("torch._utils._rebuild_nested_tensor", tensor(4, 4)),
    "tensor changed afterwards": tensor(4, 4) + b")b\x85",
    "tuples that share their parts, as a key": b"}" + TUPLES + b"Ns",
    "tuples nested deeply, as a key": b"}K\x01" + b"\x85" * 200_000 + b"Ns",
    "set of one list, many times": b"](" + b"K\x01" * 100_000 + b"eq\x00" + call("builtins.set", b"h\x00") * 100_000,
    "many objects": b"](" + b"}" * 2_000_000 + b"e",
    "text that is not there": b"X\xff\xff\xff\xff",
    "unknown opcode": b"\x96" + b"\xff" * 7 + b"\x7f",
    "frame": b"\x95" + b"\xff" * 8,
    "no end": b"K\x01",
    "nothing on the stack": b"R",
    "no such place": b"h\x07",
    "mark that is not there": b"t",
    "storage that is not there": UNSTORED,
    "something else than a storage": text("storage") + b"\x85Q",
    "endless name": b"cbuiltins" + b"s" * 5000,
    "two long keys that are equal": b"}(" + TWINS + b"h\x00Nh\x01N" * 50_000 + b"u",
    "sets of a later protocol": b"](" + b"\x8f" * 200_000 + b"e",
}


def hostile_pickle(how: str) -> bytes:
    end = b"" if how == "no end" else b"."
    return b"\x80\x02" + PICKLES[how] + end


@pytest.mark.parametrize("how", PICKLES)
def test_a_pickle_out_of_proportion(how: str) -> None:
    """T2: none of them is begun. Those that torch would carry out take terabytes, or hours."""
    data = archive(hostile_pickle(how), {"data/0": b"1234"})
    with refused(PolicyError, "the object was not loaded: it", *HINTS):
        Objects().renew(data, 1000)


def test_a_far_place_in_the_memo_takes_nothing() -> None:
    """In C, the unpickler would take 32 GiB for it."""
    with refused(PolicyError, "places that are far away"):
        Objects().load(archive(b"\x80\x02ccollections\nOrderedDict\n)Rr\xff\xff\xff\x7f."), 100)


@pytest.mark.parametrize(
    "how", ["tensor that is larger than its storage", "bytes doubled by hex", "bytearray of a size"]
)
@pytest.mark.parametrize("writer", ["own, bare", "stock"])
def test_a_tensors_pickle_out_of_proportion(checkpoint: Path, writer: str, how: str) -> None:
    """What stands where a tensor belongs is looked at in the same way."""
    dcp.save({"t": torch.zeros(4, dtype=torch.uint8)}, storage_writer=WRITERS[writer](checkpoint))
    replace_only_item(checkpoint, archive(hostile_pickle(how), {"data/0": b"1234"}))
    with refused(MetadataError, "torch.save wr"):
        load({"t": torch.zeros(4, dtype=torch.uint8)}, checkpoint, None)


def replace_only_item(path: Path, data: bytes) -> None:
    """Put other bytes in the place of the only item, as anyone can without a key."""
    (file,) = data_files(path)
    file.write_bytes(data)

    def move(index: Any) -> None:
        (item,), (facts,) = index["items"].values(), index["files"]
        item["chunks"][0].update(at=0, bytes=len(data), crc32c=crcs_of(data))
        facts.update(size=len(data))

    def move_stock(content: Any) -> None:
        (info,) = content.storage_data.values()
        info.offset, info.length = 0, len(data)

    try:
        index_of(path)
    except AssertionError:
        rewrite_pickle(path, move_stock)
    else:
        rewrite_index(path, move)


def deflated() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("archive/data.pkl", b"\x80\x02" + text("x" * 50_000_000) + b".")
    return file.getvalue()


def twice() -> bytes:
    """Two records whose names differ in case only, between which torch does not tell."""
    return archive(b"\x80\x02K\x01.", {"DATA.pkl": b"\x80\x02K\x02."})


def altered(change: Any) -> bytes:
    data = bytearray(saved(5))
    change(data)
    return bytes(data)


def _directory(data: bytearray, at: int, value: bytes) -> None:
    start = data.index(b"PK\x01\x02") + at
    data[start : start + len(value)] = value


ARCHIVES: dict[str, Any] = {
    "compressed": deflated,
    "one name twice": twice,
    "nothing": lambda: b"",
    "a plain pickle": lambda: pickle.dumps(5),
    "torch.save's old format": lambda: old_form(5),
    "cut": lambda: saved(5)[:-1],
    "continued": lambda: saved(5) + b"\0",
    "a record of another size": lambda: altered(lambda data: _directory(data, 24, b"\xff\xff\xff\x7f")),
    "a record far away": lambda: altered(lambda data: _directory(data, 42, b"\xff\xff\xff\x7f")),
    "a record that is not there": lambda: altered(lambda data: _directory(data, 42, b"\x07")),
    "an encrypted record": lambda: altered(lambda data: _directory(data, 8, b"\x01")),
    "a record of another folder": lambda: altered(lambda data: _directory(data, 46, b"b")),
    "a directory of many": lambda: altered(lambda data: _end(data, 32, 2**40)),
    "two numbers of records": lambda: altered(lambda data: _end(data, 24, 2)),
    "a directory on another disk": lambda: altered(lambda data: _end(data, 16, 1)),
    "a gap behind the directory": lambda: altered(lambda data: _end(data, 40, 1)),
    "a huge directory": lambda: altered(lambda data: _end(data, 40, 2**40)),
    "without a pickle": lambda: archive(b"", {}).replace(b"data.pkl", b"data.pkk"),
}


def _end(data: bytearray, at: int, value: int) -> None:
    start = data.index(b"PK\x06\x06") + at
    data[start : start + 8] = value.to_bytes(8, "little")


@pytest.mark.parametrize("how", ARCHIVES)
def test_a_file_that_torch_save_did_not_write(how: str) -> None:
    with refused(PolicyError, *HINTS):
        Objects().renew(ARCHIVES[how](), 1000)


def test_an_object_that_expands_too_much(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T2: a few blocks of zeros in storage cannot become gigabytes in memory."""
    monkeypatch.setattr("streamxf.budget.FREE", 2**20)
    state = {"zeros": b"\0" * 2**22}
    dcp.save(state, storage_writer=WRITERS["stock with a codec"](checkpoint))
    for reader in READERS.values():
        with refused(ContainerError, "of which it can have 1048576", "weights_only=False"):
            load_with(state, reader(checkpoint))
        assert_same(load_with(state, reader(checkpoint, weights_only=False)), state)


BOMBS = """
import resource, sys, time
from tests.objects import pickles, test_hostile as t, test_limits
from streamxf.torchsave.objects import Objects
from streamxf.errors import PolicyError
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
small = {how: test_limits.hostile(how) for how in test_limits.PICKLES}
large = {how: pickles.archive(t.hostile_pickle(how), {"data/0": b"1234"}) for how in t.PICKLES if how != "many objects"}
before = peak()
for data in small, large:
    for how, hostile in data.items():
        start = time.process_time()
        try:
            Objects().renew(hostile, 1000)
        except PolicyError:
            pass
        else:
            sys.exit(how)
        assert time.process_time() - start < 5, how
    print(peak() - before)
"""


def test_bombs_take_no_memory() -> None:
    """All that are not large themselves, in a process of their own; those of `test_limits` first, of some 100 bytes."""
    done = preloaded.script(BOMBS, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    small, both = map(int, done.stdout.split())
    assert small <= 48, "MiB"
    assert both <= 128, "MiB"
