"""Random state dicts, saved and loaded into fresh ones: what comes back is equal, or an error or a warning names it."""

import collections
import io
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.testing._internal.two_tensor import TwoTensor

import streamxf
from tests.dcp.helpers import raw_bytes, spoiled

try:
    import tensordict
except ImportError:
    tensordict = None

STATES, SAMPLE = 1000, 50  # of which the second are tried each time
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn]
CHAINS = ["zstd", "floatzip+checksum", "raw", []]


class Point(NamedTuple):
    x: Any
    y: Any


class Plain(torch.Tensor):
    """A subclass without anything of its own."""


class Unlisted:
    """Of a class that readers are not told to allow."""

    def __init__(self, value: int) -> None:
        self.value = value


class States:
    """Makes a state dict twice from one seed: as it is saved and, `fresh`, with other values everywhere."""

    def __init__(self, seed: int, fresh: bool) -> None:
        self._pick = random.Random(seed)
        self._fresh = fresh

    def state(self) -> dict[Any, Any]:
        made = {f"top{number}": self._value(3) for number in range(self._pick.randint(0, 6))}
        if tensordict is not None and self._pick.random() < 0.2:
            made["td"] = self._tensordict()
        return made

    def _number(self) -> int:
        return self._pick.randint(0, 2**40) + self._fresh

    def _value(self, depth: int) -> Any:
        kinds: list[Callable[[int], Any]] = [self._tensor, self._plain, self._plain]
        if depth:
            kinds += [self._dict, self._dict, self._list, self._tuple]
        if self._pick.random() < 0.03:
            kinds = [self._rare]
        return self._pick.choice(kinds)(depth)

    def _key(self) -> Any:
        number = self._pick.randint(0, 12)
        return self._pick.choice(
            [f"k{number}", f"k{number}", number, (number, "a"), -number, None, True, 0.5, "7", "a.b"]
        )

    def _dict(self, depth: int) -> Any:
        kind = self._pick.choice([dict, dict, dict, collections.OrderedDict])
        return kind((self._key(), self._value(depth - 1)) for _ in range(self._pick.randint(0, 4)))

    def _list(self, depth: int) -> Any:
        return [self._value(depth - 1) for _ in range(self._pick.randint(0, 4))]

    def _tuple(self, depth: int) -> Any:
        found = tuple(self._list(depth))
        return Point(found, 1) if self._pick.random() < 0.2 else found

    def _plain(self, depth: int) -> Any:
        number = self._number()
        values = [number, -number, number / 3, complex(number, 1), f"text {number}", str(number).encode(), {number, 1}]
        files = io.BytesIO(str(number).encode()), io.BytesIO()
        empty: list[Any] = [None, "", b"", [], (), set(), bytearray()]
        return self._pick.choice([*values, *files, number % 2 == 0, Fraction(number, 7), *empty])

    def _tensor(self, depth: int) -> Any:
        shape = [self._pick.choice([0, 1, 2, 3, 5]) for _ in range(self._pick.randint(0, 3))]
        dtype = self._pick.choice(DTYPES)
        generator = torch.Generator().manual_seed(self._pick.randint(0, 2**31))
        bits = torch.randint(0, 2 if dtype == torch.bool else 256, (*shape, dtype.itemsize), generator=generator)
        made = bits.to(torch.uint8).view(dtype).reshape(shape)
        made = spoiled(made) if self._fresh else made
        float_only = [torch.nn.Parameter, lambda tensor: TwoTensor(tensor, tensor)] if dtype == torch.float32 else []
        kinds: list[Any] = [lambda tensor: tensor] * 6
        kinds += [lambda tensor: tensor.as_subclass(Plain), lambda tensor: tensor.t() if tensor.dim() == 2 else tensor]
        return self._pick.choice([*kinds, *float_only])(made)

    def _rare(self, depth: int) -> Any:
        if tensordict is not None and self._pick.random() < 0.5:
            return self._tensordict()
        return self._pick.choice([collections.UserDict({"a": self._number()}), Unlisted(self._number())])

    def _tensordict(self) -> Any:
        label = tensordict.NonTensorData(self._number())
        values = {"t": torch.full((2, 3), float(self._number())), "n": {"m": label, "empty": {}}}
        if self._pick.random() < 0.5:
            values["s"] = tensordict.NonTensorStack(f"a{self._number()}", "b")
        return tensordict.TensorDict(values, [2])


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a state dict by the names that DCP gives them; of containers their classes and keys."""
    if tensordict is not None and isinstance(value, tensordict.TensorDictBase):
        value = value.to_dict()
    if isinstance(value, Mapping):
        yield path, [type(value), *value]
        for key, each in value.items():
            yield from leaves(each, f"{path}.{key}".removeprefix("."))
    elif isinstance(value, list) and not isinstance(value, tuple):
        yield path, [type(value), len(value)]
        for number, each in enumerate(value):
            yield from leaves(each, f"{path}.{number}")
    else:
        yield path, value


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        alike = type(other) is type(one) and (one.dtype, one.shape) == (other.dtype, other.shape)
        if isinstance(one, TwoTensor):
            return alike and same(one.a, other.a) and same(one.b, other.b)
        return alike and torch.equal(
            raw_bytes(one.as_subclass(torch.Tensor)), raw_bytes(other.as_subclass(torch.Tensor))
        )
    if isinstance(one, io.BytesIO):
        return type(other) is io.BytesIO and one.getvalue() == other.getvalue()
    if tensordict is not None and isinstance(one, tensordict.TensorDictBase):
        return type(one) is type(other) and same(one.to_dict(), other.to_dict())
    if isinstance(one, dict):
        return same([*one.items()], [*other.items()]) if type(one) is type(other) else False
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def check(seed: int, folder: Path) -> bool:
    """Save one state and load it into a fresh one; whether that went without an error."""
    given, found = States(seed, fresh=False).state(), States(seed, fresh=True).state()
    chain = CHAINS[seed % len(CHAINS)]
    error: BaseException | None = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            dcp.save(given, storage_writer=streamxf.FileSystemWriter(folder, chain=chain, sync_files=False))
            allowed = [Fraction, Point, Plain, TwoTensor]
            dcp.load(found, storage_reader=streamxf.FileSystemReader(folder, safe_globals=allowed))
        except (Exception, dcp.api.CheckpointException) as raised:
            error = raised
    wanted, got = dict(leaves(given)), dict(leaves(found))
    if error is not None:
        assert any(name and name in str(error) for name in wanted), error
        return False
    said = "\n".join(str(each.message) for each in caught)
    lost = [name for name in wanted if name not in got or not same(wanted[name], got[name])]
    for name in lost:
        assert name in said or name.rpartition(".")[0] in said, (seed, name)  # of a stack of values the whole is named
    assert wanted.keys() == got.keys()
    return True


@pytest.mark.parametrize("first", [0, pytest.param(SAMPLE, marks=pytest.mark.exhaustive)])
def test_what_comes_back_is_equal_or_named(tmp_path: Path, first: int) -> None:
    seeds = range(first, STATES if first else SAMPLE)
    went = sum(check(seed, tmp_path / str(seed)) for seed in seeds)
    assert went > len(seeds) // 2  # or most would say nothing
