"""Objects of some hundred bytes that would take gigabytes, read memory that is not theirs, or open a socket.

T2 of the threat model. Each is a pickle of names that torch allows by default, or put on its list itself.
"""

import collections
import errno
import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Shard

import streamxf
from streamxf.errors import BlockError, MetadataError, PolicyError
from streamxf.torchsave.check import needs
from streamxf.torchsave.objects import Objects
from tests.archives import saved
from tests.dcp.helpers import KEY, assert_same, load, refused, save
from tests.failing import fails_with

from .pickles import archive, call, number, text
from .test_policy import Tagged

MANY = 2**22
RECORDS = {"data/0": bytes(8), "data/1": bytes(8), "data/2": bytes(8)}


def storage(kind: str, key: str, elements: int) -> bytes:
    return (
        b"("
        + text("storage")
        + f"ctorch\n{kind}Storage\n".encode()
        + text(key)
        + text("cpu")
        + number(elements)
        + b"tQ"
    )


def tensor(kind: str, key: str, elements: int, size: bytes, stride: bytes, last: bytes = b"") -> bytes:
    hooks = call("collections.OrderedDict", b"")
    return call(
        "torch._utils._rebuild_tensor_v2",
        storage(kind, key, elements) + b"K\x00" + size + stride + b"\x89" + hooks + last,
    )


def one(value: int) -> bytes:
    return number(value) + b"\x85"


def expanded(kind: str = "Long", key: str = "0") -> bytes:
    return tensor(kind, key, 1, one(MANY), one(0))


def quantized(scales: bytes, zero_points: bytes, wide: bool = False) -> bytes:
    parameters = b"(ctorch\nper_channel_affine\n" + scales + zero_points + number(wide) + b"t"
    hooks = call("collections.OrderedDict", b"")
    start = (
        storage("QInt8", "0", 8)
        + b"K\x00"
        + (b"K\x00" + number(MANY) + b"\x86K\x01K\x01\x86" if wide else one(4) + one(1))
    )
    return call("torch._utils._rebuild_qtensor", start + parameters + b"\x89" + hooks)


def parameter(state: bytes) -> bytes:
    small = tensor("Long", "0", 1, one(1), one(1))
    hooks = call("collections.OrderedDict", b"")
    return call("torch._utils._rebuild_parameter_with_state", small + b"\x89" + hooks + state)


def sparse(indices: bytes, values: bytes) -> bytes:
    layout = call("torch.serialization._get_layout", text("torch.sparse_coo"))
    data = b"(" + indices + values + call("torch.Size", one(10)) + b"\x89t"
    return call("torch._utils._rebuild_sparse_tensor", layout + data)


LIST = b"](" + b"".join(b"M" + (20000 + at).to_bytes(2, "little") for at in range(19661)) + b"eq\x00"
SIZE = call("torch.Size", one(MANY * 64))
COPY = b"h\x00ctorch\ncomplex128\n" + text("cpu") + b"\x89"
PARAMETER = call("torch.nn.parameter.Parameter", b"N\x89")
PICKLES: dict[str, bytes] = {
    "set of an expanded tensor": call("builtins.set", expanded()),
    "Counter of an expanded tensor": call("collections.Counter", expanded()),
    "size of an expanded tensor": call("torch.Size", expanded()),
    "OrderedDict of an expanded tensor": call("collections.OrderedDict", b"](" + expanded() + b"e"),
    "bytearray of an expanded tensor": call("builtins.bytearray", expanded()),
    "set of a storage": call("builtins.set", storage("Long", "0", 1)),
    "parameter that is set to a size": PARAMETER + b"q\x00(h\x00K\x00" + one(MANY) + one(1) + b"tb",
    "rebuilt parameter that is set to a size": parameter(b"}") + b"q\x00(h\x00K\x00" + one(MANY) + one(1) + b"tb",
    "expanded scales": quantized(expanded("Double", "1"), expanded("Long", "2"), True),
    "scales of another number": quantized(
        tensor("Double", "1", 1, one(1), one(1)), tensor("Long", "2", 1, one(1), one(1))
    ),
    "nested lists as scales": quantized(b"]K\x01a" + b"q\x00](h\x00h\x00e" * 40, b"]"),
    "expanded indices": sparse(
        tensor("Long", "0", 1, b"K\x01" + number(MANY) + b"\x86", b"K\x00K\x00\x86"), expanded("Double", "1")
    ),
    "one list in many sets": b"](" + LIST + b"cbuiltins\nset\nq\x02" + b"h\x02h\x00\x85R" * 800 + b"e",
    "arguments that are no tuple": b"cbuiltins\nbytearray\n" + SIZE + b"R",
    "size and strides that are no tuples": tensor("Long", "0", 1, SIZE, call("torch.Size", one(1))),
    "one storage of two kinds": tensor("Long", "0", 1, one(1), one(1))
    + tensor("Byte", "0", 8, one(8), one(1))
    + b"\x86",
    "long name of a storage": tensor("Byte", "A" * 70, 8, one(8), one(1)),
    "attribute in the place of a method": call("collections.OrderedDict", b"")
    + b"}"
    + text("__reduce_ex__")
    + b"cbuiltins\ncomplex\nsb",
    "parameter with attributes that are not its own": parameter(b"}" + text("data") + expanded() + b"s"),
    "Counter with attributes": call("collections.Counter", b"") + b"}" + text("a") + b"K\x01sb",
    "one tensor copied many times": b"]("
    + tensor("Byte", "big", 2**20, one(2**20), one(1))
    + b"q\x00"
    + call("torch._utils._rebuild_device_tensor_from_cpu_tensor", COPY) * 64
    + b"e",
}


def hostile(how: str) -> bytes:
    records = dict(RECORDS)
    if how == "one tensor copied many times":
        records["data/big"] = bytes(2**20)
    if how == "long name of a storage":  # which torch would read as the record of its own name
        records.update({"data/None": bytes(8), "data/" + "A" * 70: b""})
    return archive(b"\x80\x02]" + PICKLES[how] + b"a.", records)


@pytest.mark.parametrize("how", PICKLES)
def test_it_is_refused(how: str) -> None:
    data = hostile(how)
    with refused(PolicyError, "the object was not loaded: its pickle", "safe_globals=[...]"):
        Objects().renew(data, 1000)
    with refused(MetadataError, "no tensor that torch.save wrote"):
        Objects().load_tensor(io.BytesIO(data), len(data), 1000)


@pytest.mark.parametrize("function", ["_rebuild_tensor_v2", "_rebuild_parameter"])
def test_a_few_bytes_do_not_make_a_tensor_each(function: str) -> None:
    """Called with what is there already, by three opcodes. Torch takes a kilobyte for each."""
    first = tensor("Long", "0", 1, one(1), one(1))
    if function == "_rebuild_parameter":
        first = call(f"torch._utils.{function}", first + b"\x89" + call("collections.OrderedDict", b""))
    again = (
        f"ctorch._utils\n{function}\n".encode() + b"q\x01" + first.removeprefix(f"ctorch._utils\n{function}\n".encode())
    )
    again = again[:-1] + b"q\x02R"  # of the arguments
    long = text("x" * 2**22)  # which allows more steps, and takes little when it is compressed

    def made(count: int) -> bytes:
        return archive(b"\x80\x02](" + long + again + b"h\x01h\x02R" * count + b"e.", RECORDS)

    assert len(Objects().load(made(1000), 1000)) == 1002
    with refused(PolicyError, "its pickle makes more than 65", "tensors"):
        Objects().load(made(100_000), 1000)


# -- what torch allows on its own account ---------------------------------------------------------


MESH = call("torch.distributed.device_mesh.DeviceMesh", text("cpu") + b"](K\x00e")


def test_what_torch_put_on_its_list_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DeviceMesh in torch.serialization.get_safe_globals()
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    data = archive(b"\x80\x02" + MESH + b".")
    mesh = "torch.distributed.device_mesh.DeviceMesh"
    with refused(PolicyError, f"it needs {mesh}", "safe_globals=[...]"):
        Objects().renew(data, 1000)
    with refused(PolicyError, f"it needs {mesh}", "safe_globals=[...]"):
        Objects().load_tensor(io.BytesIO(data), len(data), 1000)
    assert not dist.is_initialized()
    assert needs(data) == ((mesh,), "")


def test_it_loads_if_somebody_names_it(checkpoint: Path) -> None:
    with pytest.warns(UserWarning, match="placement_types.Shard"):
        save({"placement": (Shard(1),)}, checkpoint)
    with refused(PolicyError, "torch.distributed.tensor.placement_types.Shard"):
        load({"placement": None}, checkpoint)
    assert load({"placement": None}, checkpoint, safe_globals=[Shard]) == {"placement": (Shard(1),)}
    assert list(streamxf.unsafe_globals(checkpoint, keys=KEY).names) == [
        "torch.distributed.tensor.placement_types.Shard"
    ]


# -- what is saved as it is loaded ------------------------------------------------------------------


def own_attributes() -> list[Any]:
    state = torch.nn.Linear(2, 2).state_dict()  # with _metadata
    marked = torch.nn.Parameter(torch.ones(2))
    marked.tensor_model_parallel = True
    noted = torch.ones(3)
    noted.note = "kept"
    return [state, marked, noted]


def test_attributes_of_their_own_are_kept() -> None:
    renewed = torch.load(io.BytesIO(Objects().renew(saved(own_attributes()), 1000)), weights_only=True)
    state, marked, noted = renewed
    assert state._metadata == own_attributes()[0]._metadata
    assert type(marked) is torch.nn.Parameter
    assert (marked.tensor_model_parallel, noted.note) == (True, "kept")


VALUES: dict[str, Any] = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed": lambda: torch.eye(3).to_sparse_csr(),
    "meta": lambda: torch.empty(3, device="meta"),
    "a set of tensors' sizes": lambda: {torch.Size([at, 1]) for at in range(9)},
    "large dict and set": lambda: ({(at, "x"): at for at in range(50_000)}, set(range(200_000))),
    "bytes": lambda: [bytes(range(256)) * 4096, bytearray(2**20)],
    "numbers by name": lambda: collections.Counter({at: at for at in range(50_000)}),
}


@pytest.mark.parametrize("kind", VALUES)
def test_what_torch_save_writes_loads(kind: str) -> None:
    data = saved([VALUES[kind]()])
    (found,) = torch.load(io.BytesIO(Objects().renew(data, 1000)), weights_only=True)
    if isinstance(found, torch.Tensor):
        assert (found.layout, found.device, found.shape) == (
            *[getattr(VALUES[kind](), name) for name in ("layout", "device", "shape")],
        )
        if found.device.type != "meta":
            assert torch.equal(found.to_dense(), VALUES[kind]().to_dense())
    else:
        assert_same(found, VALUES[kind]())


def test_quantized_tensors_load() -> None:
    scales, zeros = torch.tensor([0.1, 0.2], dtype=torch.double), torch.zeros(2, dtype=torch.long)
    value = torch.quantize_per_channel(torch.ones(2, 3), scales, zeros, 0, torch.qint8)
    flat = torch.quantize_per_tensor(torch.ones(4), 0.5, 1, torch.qint8)
    found = torch.load(io.BytesIO(Objects().renew(saved([value, flat]), 1000)), weights_only=True)
    assert [torch.equal(one, other) for one, other in zip(found, [value, flat], strict=True)] == [True, True]


def test_a_subclass_that_is_named_keeps_its_attributes() -> None:
    value = torch.ones(2).as_subclass(Tagged)
    value.note = "kept"
    reader = Objects(safe_globals=[Tagged])
    with torch.serialization.safe_globals([Tagged]):
        (found,) = torch.load(io.BytesIO(reader.renew(saved([value]), 1000)), weights_only=True)
    assert (type(found), found.note) == (Tagged, "kept")


def test_sparse_tensors_whose_indices_lead_out_of_them_are_refused() -> None:
    """Torch looks at indices only when they are used, and then past the memory that is there."""
    indices = torch.tensor([[0, 10**6]])
    value = torch.sparse_coo_tensor(indices, torch.ones(2), (4,), check_invariants=False)
    with pytest.raises(MetadataError, match="index"):
        Objects().renew(saved([value]), 1000)


@pytest.mark.parametrize("name", ["os.getenv", "sys.getrecursionlimit", "posix.getpid"])
def test_functions_of_the_system_are_refused_to_whoever_allows_them(name: str) -> None:
    function = getattr(sys.modules[name.partition(".")[0]], name.partition(".")[2])
    data = archive(b"\x80\x02" + call(name, text("HOME") if name == "os.getenv" else b"") + b".", RECORDS)
    with refused(PolicyError, f"it needs {name}"):
        Objects(safe_globals=[(function, name)]).renew(data, 1000)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "a bad sector"), BlockError("a wrong CRC"), MemoryError()])
def test_what_the_file_of_a_tensor_raises_comes_as_it_is(error: BaseException) -> None:
    class Failing(io.BytesIO):
        def read(self, *_: Any) -> bytes:
            raise error

        readinto = read  # type: ignore[assignment]

    file = Failing(saved(torch.zeros(9)))
    with pytest.raises(type(error)) as caught:
        Objects().load_tensor(file, len(file.getvalue()), 1000)
    assert caught.value is error


@pytest.mark.parametrize("error", [MemoryError(), BlockError("damaged")])
def test_what_is_not_the_objects_fault_is_raised_as_it_is(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Objects, "_made", fails_with(lambda: error))
    with pytest.raises(type(error)) as caught:
        Objects().load(saved(5), 100)
    assert caught.value is error
