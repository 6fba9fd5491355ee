"""What the DCP tests share: state dicts, blank ones to load into, comparisons, and errors out of DCP's wrapping."""

from __future__ import annotations

import copy
import io
import logging
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._extension import StreamTransformExtension
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.torch_version import TorchVersion

import streamxf
from streamxf import Checksum, Encrypt, Key, ZStandard
from streamxf.format.index import Index
from streamxf.format.items import Place
from streamxf.format.limits import TRAILER_BYTES
from streamxf.format.sections import Sections, Trailer, pack, pack_keys
from streamxf.keys import KeyRing
from streamxf.keys.envelope import DataKey, Vouchers
from tests.cli import preloaded
from tests.forge import pack_index, split_metadata

KEY = Key(bytes(range(32)))
OTHER_KEY = Key(bytes(range(1, 33)))


needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)


def full_chain(key: Key = KEY) -> list[Any]:
    return [ZStandard(level=3), Checksum(), Encrypt(key)]


def since(version: str, why: str) -> pytest.MarkDecorator:
    """Leaves a test out under torch before `version`."""
    return pytest.mark.skipif(TorchVersion(torch.__version__) < version, reason=f"torch before {version} {why}")


# -- saving and loading --------------------------------------------------------------------------


def save(state: dict[str, Any], path: Path | str, extensions: list[Any] | None = None, **options: Any) -> None:
    """Save with streamxf's writer, through the full chain unless told otherwise, and without fsync."""
    chain = full_chain() if extensions is None else extensions
    options.setdefault("sync_files", False)
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, _extensions=chain, **options))


def load(state: dict[str, Any], path: Path | str, keys: Any = KEY, **options: Any) -> dict[str, Any]:
    """Load with streamxf's reader into a blank copy of `state`."""
    return load_with(state, streamxf.FileSystemReader(path, keys=keys, **options))


def load_with(state: dict[str, Any], reader: Any) -> dict[str, Any]:
    return load_into(blank(state), reader)


def load_into(target: dict[str, Any], reader: Any, **options: Any) -> dict[str, Any]:
    """Load with `reader` into `target`, and return that."""
    dcp.load(target, storage_reader=reader, **options)
    return target


def data_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.distcp"))


def stored_chain(path: Path | str, keys: Any = KEY) -> str:
    """The chain that all items of a checkpoint went through."""
    with streamxf.Checkpoint(path, keys=keys) as checkpoint:
        chunks = [getattr(item, "chunks", [item]) for item in checkpoint.stored.values()]
    (chain,) = {chunk.place.chain for items in chunks for chunk in items}
    return "+".join(text.partition("/")[0].removeprefix("streamxf.") for text in chain)


def entries_of(found: Metadata) -> dict[str, Any]:
    """What planners say, without strides, which they have from torch 2.15 on: no reader uses or stores these."""
    entries = copy.deepcopy(found.state_dict_metadata)
    for properties in (entry.properties for entry in entries.values() if hasattr(entry, "properties")):
        if hasattr(properties, "strides"):
            properties.strides = None
    return entries


# -- state dicts ---------------------------------------------------------------------------------


def blank(value: Any) -> Any:
    """A copy to load into. Its tensors differ from the original in every byte, so that one left untouched shows."""
    if isinstance(value, torch.Tensor):
        return spoiled(value)
    if isinstance(value, dict):
        return {name: blank(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(blank(item) for item in value)
    return f"not loaded: {type(value).__name__}"


def spoiled(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype == torch.bool:
        return ~tensor.detach().contiguous()
    raw = raw_bytes(tensor)
    return (~raw).view(tensor.dtype).reshape(tensor.shape)


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The values' bytes in row-major order."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def noise(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Random bits, so NaNs with payloads, infinities and denormals among them."""
    count = torch.Size(shape).numel()
    if dtype == torch.bool:
        return torch.randint(0, 2, shape).bool()
    return torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8).view(dtype).reshape(shape)


def by_name(value: Any) -> Any:
    """Dicts in the order of their keys: an index has items in the order of their names, and a pickle any."""
    return {name: by_name(value[name]) for name in sorted(value)} if isinstance(value, dict) else value


def assert_only(path: Path, state: dict[str, Any], keys: Any = KEY) -> None:
    """The checkpoint loads, and nothing else is there: nothing is left of a save that failed."""
    assert_same(load(state, path, keys), state)
    assert {file.name for file in path.iterdir()} == {".metadata", *index_of(path).files}


def assert_same(found: Any, wanted: Any, where: str = "state") -> None:
    """Compare bit for bit: NaNs and signs of zero count, and strides do not."""
    if isinstance(wanted, torch.Tensor):
        assert isinstance(found, torch.Tensor), where
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), where
        assert torch.equal(raw_bytes(found), raw_bytes(wanted)), where
    elif isinstance(wanted, dict):
        assert isinstance(found, dict), where
        assert list(found) == list(wanted), where
        for name, item in wanted.items():
            assert_same(found[name], item, f"{where}.{name:.40}" if isinstance(name, str) else f"{where}[{name}]")
    elif isinstance(wanted, list | tuple):
        assert type(found) is type(wanted), where
        assert len(found) == len(wanted), where
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_same(one, other, f"{where}[{number}]")
    else:
        assert type(found) is type(wanted), where
        assert found == wanted, where


def small_state() -> dict[str, Any]:
    """A tensor and an object of each kind that DCP stores, in a few hundred bytes."""
    generator = torch.Generator().manual_seed(5)
    return {
        "weight": torch.randn(7, 5, generator=generator),
        "half": torch.randn(33, generator=generator).to(torch.bfloat16),
        "nested": {"list": [torch.arange(6), 3], "text": "ünïcode", "raw": b"\0\xff", "none": None},
        "step": 17,
    }


# -- errors --------------------------------------------------------------------------------------


class Watched(streamxf.CodecRegistry):
    """Notes which codecs are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.built: list[str] = []

    def build(self, descriptor: Any, *arguments: Any, **more: Any) -> Any:
        self.built.append(descriptor.name)
        return super().build(descriptor, *arguments, **more)


def error_of(action: Callable[[], Any]) -> BaseException | None:
    """What `action` raises, taken out of the CheckpointException that DCP puts around it; None if it passes."""
    try:
        action()
    except CheckpointException as error:
        return unwrapped(error)
    except Exception as error:
        return error
    return None


def unwrapped(error: CheckpointException) -> BaseException:
    return next(iter(error.failures.values()))[0]


@contextmanager
def refused(kind: type[BaseException], *words: str) -> Iterator[None]:
    """Expect `kind` itself, bare or inside DCP's CheckpointException, with all `words` in its message."""
    with pytest.raises((kind, CheckpointException)) as caught:
        yield
    error = unwrapped(caught.value) if isinstance(caught.value, CheckpointException) else caught.value
    assert isinstance(error, kind), repr(error)
    for word in words:
        assert word in str(error), str(error)


# -- metadata, taken apart and put together again by somebody who has the key --------------------


class Acting(dcp.DefaultSavePlanner):
    """Runs `act` with the number of each item that is asked for, from 1, counted over all threads."""

    def __init__(self, act: Callable[[int], None], **options: Any) -> None:
        super().__init__(**options)
        self._act = act
        self._lock = threading.Lock()
        self._asked = 0

    def resolve_data(self, write_item: Any) -> Any:
        with self._lock:
            self._asked += 1
            number = self._asked
        self._act(number)
        return super().resolve_data(write_item)


def raising(at: int, error: BaseException) -> Callable[[int], None]:
    def act(number: int) -> None:
        if number == at:
            raise error

    return act


class Told(logging.Handler):
    """Keeps what is logged of saves in the background. A future's callbacks run after those who wait for it woke up."""

    _logger = logging.getLogger("streamxf.dcp.writer")

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._one = threading.Semaphore(0)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self._one.release()

    def wait(self) -> str:
        """The next message."""
        assert self._one.acquire(timeout=300)
        return self.records[-1].getMessage()

    def __enter__(self) -> Told:
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)


def sections_of(path: Path, name: str = ".metadata") -> tuple[bytes, Sections]:
    """The head of a metadata file, and the rest of it as it is stored."""
    data = (path / name).read_bytes()
    trailer = Trailer.parse(data[-TRAILER_BYTES:], len(data))
    assert trailer is not None
    sections = trailer.split(data[-trailer.size :], read=lambda at, size: data[at : at + size])
    return sections.head(), sections


def index_of(path: Path, name: str = ".metadata") -> Index:
    sections = sections_of(path, name)[1]
    return Index.parse(sections.root, sections.parts, sections.parts_size)


def swap(path: Path, places: Sequence[Place]) -> None:
    """Exchange the bytes of two places in the data file, which are of one size."""
    (file,) = data_files(path)
    data = bytearray(file.read_bytes())
    first, second = (data[place.at : place.at + place.size] for place in places)
    assert len(first) == len(second)
    for place, content in zip(places, (second, first), strict=True):
        data[place.at : place.at + place.size] = content
    file.write_bytes(data)


def data_key_of(path: Path, key: Key = KEY, name: str = ".metadata") -> DataKey | None:
    """The data key of the process that published; None if nothing is encrypted."""
    lines = sections_of(path, name)[1].key_lines()
    return None if lines is None else KeyRing.of(key).unwrap(lines[0])


def rewrite_index(path: Path, change: Callable[[Any], Any], key: Key = KEY, *, name: str = ".metadata") -> None:
    """Let `change` alter what the index says, as tests/forge.py has it, and vouch for what comes of it."""
    made = split_metadata((path / name).read_bytes())
    assert isinstance(made.index, dict)
    change(made.index)
    root, parts = pack_index(made.index)
    keys = revouched(sections_of(path, name)[1], root, key)
    (path / name).write_bytes(made.change(index=root, parts=parts, keys=keys).pack())


def rewritten(sections: Sections, *, head: bytes | None = None, keys: bytes | None = None) -> bytes:
    """A metadata file with another head, or other keys."""
    parts, root = sections.parts(0, sections.parts_size), bytes(sections.root)
    return pack(sections.head() if head is None else head, parts, root, bytes(sections.keys) if keys is None else keys)


def revouched(sections: Sections, root: bytes, key: Key = KEY) -> bytes:
    """The keys of a metadata file, with vouchers for another index."""
    lines = sections.key_lines()
    if lines is None:
        return b""
    digest = Sections(memoryview(root), memoryview(b"")).digest
    vouchers = Vouchers.make(digest, lines[0], KeyRing.of(key).unwrap(lines[0]), [key])
    return pack_keys(lines[0], str(vouchers))


def rewrite_pickle(path: Path, change: Callable[[Metadata], Any], *, name: str = ".metadata") -> None:
    """Let `change` alter the metadata of torch's own writer, or of an attached one."""
    file = path / name
    content = pickle.loads(file.read_bytes())
    change(content)
    file.write_bytes(pickle.dumps(content))


# -- extensions from elsewhere -------------------------------------------------------------------


class Xor(StreamTransformExtension):
    """A toy stream extension. It remembers nothing of the position, so it also shows how a stream is cut."""

    def __init__(self, mask: int = 0x5A) -> None:
        self.mask = mask
        self.table = bytes(value ^ mask for value in range(256))

    @staticmethod
    def registry_name() -> str:
        return "toy.xor"

    @staticmethod
    def from_descriptor(version: str) -> Xor:
        return Xor(int(version))

    def get_descriptor(self) -> str:
        return f"toy.xor/{self.mask}"

    def transform_to(self, output: Any) -> Any:
        return _XorWriter(output, self.table)

    def transform_from(self, input: Any) -> Any:
        return _XorReader(input, self.table)


class _XorWriter(io.RawIOBase):
    def __init__(self, output: Any, table: bytes) -> None:
        self._output = output
        self._table = table

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._output.write(bytes(data).translate(self._table))
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._output.close()


class _XorReader(io.RawIOBase):
    def __init__(self, input: Any, table: bytes) -> None:
        self._input = input
        self._table = table

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._input.read(len(buffer))
        buffer[: len(data)] = data.translate(self._table)
        return len(data)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "own": lambda path: streamxf.FileSystemWriter(path, _extensions=[Checksum()], sync_files=False),
    "own, bare": lambda path: streamxf.FileSystemWriter(path, _extensions=[], sync_files=False),
    "own, foreign": lambda path: streamxf.FileSystemWriter(path, _extensions=[Xor()], sync_files=False),
    "attached": lambda path: streamxf.attach(dcp.FileSystemWriter(path, sync_files=False), [ZStandard()]),
    "stock": lambda path: dcp.FileSystemWriter(path, sync_files=False),
    "stock with a codec": lambda path: dcp.FileSystemWriter(path, _extensions=[ZStandard()], sync_files=False),
}


def registry() -> streamxf.Registry:
    made = streamxf.Registry()
    made.register(Xor)
    return made


def run_as_main(function: Callable[[Path], None], folder: Path, before: str = "") -> None:
    """Call a function of a module with a folder, in a process whose main module can be imported again, as a child that
    DCP starts does. `before` is what the module begins with.
    """
    code = f"{before}if __name__ == '__main__':\n    from {function.__module__} import {function.__name__} as run"
    script = folder / "script.py"
    script.write_text(f"{code}\n    from pathlib import Path\n    run(Path({str(folder)!r}))\n")
    ran = preloaded.script(
        f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')", cwd=Path(__file__).parents[2]
    )
    assert ran.returncode == 0, ran.stderr
