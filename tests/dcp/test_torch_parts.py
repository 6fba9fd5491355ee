"""What streamxf/torch_private.py relies on, part by part; and that private parts are reached from nowhere else."""

from __future__ import annotations

import ast
import inspect
import io
import multiprocessing
import pickle
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._async_process_executor import _AsyncCheckpointProcess
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem, SavePlan
from torch.distributed.checkpoint.planner_helpers import _create_write_items
from torch.distributed.tensor import DTensor

import streamxf
from streamxf import torch_private
from streamxf.errors import UnsupportedError
from tests.dcp.helpers import since

PACKAGE = Path(streamxf.__file__).parent
HOME = "torch_private.py"
# These read pickles and compare the names in them.
NAMES_IN_PICKLES = {"torchsave/calls.py", "torchsave/check.py", "torchsave/unpickler.py", "torchsave/writing.py"}


class Doubled(torch_private.StreamTransformExtension):
    """Each byte twice; it says in which order it was asked."""

    asked: list[Doubled]

    @staticmethod
    def registry_name() -> str:
        return "test.doubled"

    @classmethod
    def from_descriptor(cls, version: str) -> Doubled:
        return cls()

    def get_descriptor(self) -> str:
        return "test.doubled/1"

    def transform_to(self, output: Any) -> Any:
        self.found = torch_private.extensions_of_the_asking_writer(frames=1)
        return output

    def transform_from(self, input: Any) -> Any:
        return input


def parameters(function: Any) -> list[str]:
    return [*inspect.signature(function).parameters]


def write_item(name: str = "w", tensor: torch.Tensor | None = None) -> Any:
    (item,) = _create_write_items(name, torch.ones(4) if tensor is None else tensor)
    return item


def read_item() -> Any:
    index, nothing = MetadataIndex("w"), torch.Size([0])
    return ReadItem(LoadItemType.BYTE_IO, index, nothing, index, nothing, nothing)


# -- stream extensions ---------------------------------------------------------------------------------------


def test_codecs_are_extensions():
    codec = streamxf.ZStandard()
    assert isinstance(codec, torch_private.StreamTransformExtension)
    assert isinstance(codec, torch_private.StreamTransformExtension.__base__)
    for name in ("registry_name", "from_descriptor", "get_descriptor", "transform_to", "transform_from"):
        assert callable(getattr(torch_private.StreamTransformExtension, name))
        assert callable(getattr(codec, name))


def test_a_registry_takes_classes_and_gives_extensions_for_descriptors():
    registry = torch_private.ExtensionRegistry()
    registry.register(Doubled)
    (made,) = registry.from_descriptor_list(["test.doubled/1"])
    assert type(made) is Doubled
    with pytest.raises(ValueError, match="Unknown extension"):
        registry.from_descriptor_list(["test.other/1"])


def test_torchs_own_zstandard():
    assert torch_private.ZStandard.registry_name() == "stream.zstd"
    assert torch_private.ZStandard().get_descriptor() == "stream.zstd/1"


def test_the_writer_asks_each_extension_of_its_list_for_a_stream():
    extensions = [Doubled(), Doubled()]
    transforms = torch_private.StorageWriterTransforms(extensions)
    assert parameters(transforms.transform_save_stream) == ["write_item", "raw_stream"]
    stream, descriptors = transforms.transform_save_stream(write_item(), io.BytesIO())
    assert callable(stream.write)
    assert [*descriptors] == ["test.doubled/1"] * 2
    assert all(extension.found is extensions for extension in extensions)


def test_nobody_asks_where_no_writer_does():
    assert Doubled().transform_to(io.BytesIO()) is not None
    assert torch_private.extensions_of_the_asking_writer(frames=0) is None


def test_the_reader_asks_what_the_registry_gives():
    registry = torch_private.ExtensionRegistry()
    registry.register(Doubled)
    transforms = torch_private.StorageReaderTransforms(registry)
    assert parameters(transforms.transform_load_stream) == ["read_item", "transform_descriptors", "raw_stream"]
    stream = transforms.transform_load_stream(read_item(), ["test.doubled/1"], io.BytesIO(b"abc"))
    assert stream.read() == b"abc"


def test_writers_and_readers_keep_them_as_transforms(tmp_path: Path):
    writer, reader = dcp.FileSystemWriter(tmp_path), dcp.FileSystemReader(tmp_path)
    assert type(writer.transforms) is torch_private.StorageWriterTransforms
    assert type(reader.transforms) is torch_private.StorageReaderTransforms


# -- DCP -----------------------------------------------------------------------------------------------------


def test_where_an_item_is():
    info = torch_private.StorageInfo("__0_0.distcp", 3, 9, ["stream.zstd/1"])
    assert (info.relative_path, info.offset, info.length) == ("__0_0.distcp", 3, 9)
    assert info.transform_descriptors == ["stream.zstd/1"]
    assert torch_private.StorageInfo("a", 0, 0).transform_descriptors is None
    info.streamxf_extra = "travels"  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(info)).streamxf_extra == "travels"


def test_plans_of_a_torch_writer_have_a_prefix(tmp_path: Path):
    (plan,) = dcp.FileSystemWriter(tmp_path).prepare_global_plan([SavePlan([])])
    assert type(plan.storage_data) is torch_private.StoragePrefix


def test_items_are_distributed_over_files():
    items = [write_item(str(size), torch.ones(size)) for size in (4, 400, 40)]
    buckets = torch_private.split_by_size_and_type(2, items)
    assert sorted(item.index.fqn for bucket in buckets for item in bucket) == ["4", "40", "400"]
    assert [item.index.fqn for item in min(buckets, key=len)] == ["400"]


@pytest.mark.parametrize(
    ("name", "own"), [("FsspecWriter", streamxf.FsspecWriter), ("FsspecReader", streamxf.FsspecReader)]
)
def test_classes_for_urls(name: str, own: type):
    cls = getattr(torch_private, name)
    assert issubclass(own, cls)
    assert issubclass(cls, getattr(dcp, name.replace("Fsspec", "FileSystem")))
    assert next(iter(parameters(cls))) == "path"


def test_the_chunks_of_a_tensor():
    (chunk,) = torch_private.create_chunk_list(torch.ones(2, 3))
    assert (tuple(chunk.offsets), tuple(chunk.sizes)) == ((0, 0), (2, 3))
    with pytest.raises(ValueError, match="Unsupported"):
        torch_private.create_chunk_list("no tensor")  # type: ignore[arg-type]


def test_a_part_of_a_tensor_is_a_view():
    tensor = torch.arange(12).reshape(3, 4)
    part = torch_private.narrow_tensor_by_index(tensor, [1, 2], [2, 1])
    part.fill_(-1)
    assert tensor[1:, 2:3].eq(-1).all()
    assert tensor.eq(-1).sum() == 2


def test_tensors_of_other_classes():
    assert callable(torch_private.ShardedTensor.local_shards)
    assert not torch_private.is_traceable_wrapper_subclass(torch.ones(2))
    assert hasattr(DTensor, "__tensor_flatten__")


def test_subclasses_that_refuse_are_not_asked():
    tensor = torch.ones(2).as_subclass(Refusing)
    with pytest.raises(NotImplementedError):
        tensor.is_inference()
    assert torch_private.counted_changes(tensor) == 0


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


# -- torch.save and torch.load -------------------------------------------------------------------------------


def test_copies_on_write_are_known():
    tensor = torch.ones(4)
    assert not torch_private.is_cow_tensor(tensor)
    lazy = torch._lazy_clone(tensor)
    assert torch_private.is_cow_tensor(lazy)
    lazy.fill_(2)
    assert not torch_private.is_cow_tensor(lazy)


def test_what_a_pickle_asks_for_its_storages_with():
    target = io.BytesIO()
    torch.save(torch.arange(3.0), target)
    pickled = torch._C.PyTorchFileReader(io.BytesIO(target.getvalue())).get_record("data.pkl")  # type: ignore[attr-defined]
    memory = torch.arange(3.0).untyped_storage()
    restore: Any = torch_private.get_restore_location("cpu")  # type: ignore[no-untyped-call]
    asked: list[Any] = []

    def find(reference: Any) -> Any:
        asked.append(reference)
        return torch_private.typed_storage(restore(memory, "cpu"), torch.float32)

    class Asking(pickle.Unpickler):
        def persistent_load(self, reference: Any) -> Any:
            return find(reference)

    assert torch.equal(Asking(io.BytesIO(pickled), encoding="utf-8").load(), torch.arange(3.0))
    assert asked == [("storage", torch.FloatStorage, "0", "cpu", 3)]


def test_sparse_tensors_are_checked_at_the_end():
    """Rebuilding one puts it on a list, which the check empties."""
    from torch._utils import _rebuild_sparse_tensor

    _rebuild_sparse_tensor(torch.sparse_coo, (torch.tensor([[9]]), torch.ones(1), (2,), False))
    with (
        torch.sparse.check_sparse_tensor_invariants(True),
        pytest.raises(RuntimeError, match="size is inconsistent with indices"),
    ):
        torch_private.validate_loaded_sparse_tensors()  # type: ignore[no-untyped-call]
    with torch.sparse.check_sparse_tensor_invariants(True):
        torch_private.validate_loaded_sparse_tensors()  # type: ignore[no-untyped-call]


def test_the_place_of_map_location():
    assert torch_private.serialization_tls.map_location is None


# -- what `install` replaces ---------------------------------------------------------------------------------


def test_what_makes_a_writer_of_an_id(tmp_path: Path):
    assert type(torch_private.storage_setup(None, tmp_path, reader=False)) is dcp.FileSystemWriter
    assert type(torch_private.storage_setup(None, tmp_path, reader=True)) is dcp.FileSystemReader


def test_the_class_under_all_writers_begins_each_save():
    own = vars(torch_private.AnyFileSystemWriter)["set_up_storage_writer"]
    for writer in (dcp.FileSystemWriter, torch_private.FsspecWriter):
        assert issubclass(writer, torch_private.AnyFileSystemWriter)
        assert writer.set_up_storage_writer is own


@pytest.mark.parametrize("name", ["ThreadBasedAsyncCheckpointExecutor", "ProcessBasedAsyncCheckpointExecutor"])
def test_what_saves_in_the_background(name: str):
    parameters = inspect.signature(torch_private.part(name).execute_save).parameters
    assert {"checkpoint_id", "storage_writer"} <= {*parameters}


# -- the file itself -----------------------------------------------------------------------------------------


def test_changes_in_place_are_counted():
    tensor = torch.zeros(4)
    before = torch_private.counted_changes(tensor)
    torch.zeros(4).copy_(tensor)
    assert torch_private.counted_changes(tensor) == before
    for change in (
        lambda: tensor.add_(1),
        lambda: tensor[1:2].fill_(1),
        lambda: tensor.detach().zero_(),
        lambda: torch._foreach_add_([tensor], 1),
    ):
        with torch.no_grad():
            change()
        before, earlier = torch_private.counted_changes(tensor), before
        assert before > earlier
    with torch.inference_mode():
        assert torch_private.counted_changes(torch.zeros(4).add_(1)) == 0


def test_this_process_is_not_the_one_that_saves():
    """rank_scenarios.py has a save in the other."""
    assert not torch_private.in_the_process_that_saves()


class AsksForTheState:
    found: Any = None

    def __getstate__(self) -> dict[str, Any]:
        self.found = torch_private.state_on_the_way()
        return {}


@since("2.8", "has a queue where the others have pipes")
def test_a_writer_that_is_pickled_finds_the_state_that_goes_with_it():
    process: Any = _AsyncCheckpointProcess.__new__(_AsyncCheckpointProcess)
    process._send, process._wait_for_response = pickle.dumps, lambda: Metadata({})
    process._save_process, queue = multiprocessing.Process(), multiprocessing.Queue()
    writer, state = AsksForTheState(), {"weight": torch.ones(3)}
    process.save(state, storage_writer=writer)
    assert writer.found is state
    pickle.dumps(writer)
    assert writer.found is None
    queue.put(SimpleNamespace(staged_state_dict=state, storage_writer=writer))
    assert queue.get()
    assert writer.found is state, "as torch 2.7 sends it"


class AsksForItsFuture(dcp.DefaultSavePlanner):
    found: Any = None

    def create_local_plan(self) -> Any:
        self.found = torch_private.future_of_the_save_in_this_thread()
        return super().create_local_plan()


class IsAskedAfterwards(dcp.FileSystemWriter):
    should_synchronize_after_execute = True

    def synchronize_staging(self) -> None:
        self.found = torch_private.future_of_async_save()


def test_a_save_in_the_background_finds_its_future(tmp_path: Path):
    writer, planner, state = IsAskedAfterwards(tmp_path), AsksForItsFuture(), {"weight": torch.ones(3)}
    future: Any = dcp.async_save(state, storage_writer=writer, planner=planner)
    future.result(300)
    assert planner.found is writer.found is future
    assert torch_private.future_of_async_save() is None
    dcp.save(state, storage_writer=writer, planner=planner)
    assert planner.found is None
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: dcp.save(state, storage_writer=writer, planner=planner)).result(300)
    assert planner.found is None


def test_how_states_are_flattened():
    """What this does to loads and saves is in test_load_planner.py."""
    assert torch_private.flattening._derived_version is None


def test_type_checkers_see_the_parts_where_they_are_at_run_time():
    tree = ast.parse((PACKAGE / HOME).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom) and (node.module, node.names[0].name) != ("torch", "Tensor")
        for alias in node.names
    }
    parts = {name: part.split(":") for name, part in torch_private._PARTS.items()}
    assert seen
    for name, place in seen.items():
        home, attribute = parts[name]
        assert place == f"{torch_private._EARLIER.get(home, home)}:{attribute}"


FUNCTIONS = [
    name
    for name, found in inspect.getmembers(torch_private, inspect.isfunction)
    if name[0] != "_" and found.__module__ == torch_private.__name__
]


@pytest.mark.parametrize("name", [*torch_private._PARTS, *FUNCTIONS])
def test_each_part_is_in_use(name: str):
    sources = [path.read_text() for path in PACKAGE.rglob("*.py") if path.name != HOME]
    within = f'__getattr__("{name}")' in (PACKAGE / HOME).read_text()
    assert within or any(re.search(rf"\b{name}\b", source) for source in sources)


def test_a_part_that_torch_no_longer_has_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(torch_private._PARTS, "Gone", "torch.serialization:_gone")
    with pytest.raises(UnsupportedError, match=r"torch .* has no torch\.serialization\._gone"):
        _ = torch_private.Gone
    with pytest.raises(AttributeError):
        _ = torch_private.never_there


def private_in(source: str) -> Iterator[str]:
    """The private names of torch that a source imports, reaches as attributes of torch's modules, or has as text."""
    tree = ast.parse(source)
    known: dict[str, str] = {}

    def dotted(node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return known.get(node.id)
        if isinstance(node, ast.Attribute) and (before := dotted(node.value)) is not None:
            return f"{before}.{node.attr}"
        return None

    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    known[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                    found.append(alias.name)
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "torch":
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                found.append(f"{node.module}.{alias.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (name := dotted(node)) is not None:
            found.append(name)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"torch[\w.]+", str(node.value)):
            found.append(str(node.value))
        elif isinstance(node, ast.Attribute) and node.attr == "_cdata":
            found.append("torch.UntypedStorage._cdata")
    return (name for name in found if re.search(r"\._(?!_)", name))


@pytest.mark.parametrize(
    "source",
    [
        "from torch.distributed.checkpoint._extension import Extension",
        "from torch.serialization import _save",
        "from torch.distributed.checkpoint import _traverse",
        "import torch._C",
        "import torch\ntorch._C._is_cow_tensor(1)",
        "import torch.serialization as there\nthere._save",
        "from torch.distributed.checkpoint import filesystem\nfilesystem._split_by_size_and_type",
        "import_module('torch.distributed._shard')",
        "tensor.untyped_storage()._cdata",
    ],
)
def test_what_is_private_is_found(source: str):
    assert [*private_in(source)]


def test_what_is_public_is_not():
    assert not [*private_in("import torch\ntorch.serialization.add_safe_globals\nself._own\ntorch.__version__")]


def test_private_parts_are_reached_from_one_file():
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in sorted(PACKAGE.rglob("*.py"))
        if (names := [*private_in(path.read_text())])
    }
    del found[HOME]
    assert found.keys() == NAMES_IN_PICKLES, found
