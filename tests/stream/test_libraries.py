"""What torch, NumPy and safetensors write goes through `streamxf.open`, and their loaders read from it directly."""

import csv
import gzip
import io
import lzma
import pickle
import shutil
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, save

import streamxf
from tests.samples import BLOCK, FULL, KEY

CHAINS = pytest.mark.parametrize("chain", [(), "zstd+checksum", "lz4:level=9", FULL], ids=str)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.sxf"


@CHAINS
def test_torch(path, chain):
    state = {"w": torch.randn(300, 100), "half": torch.ones(7, dtype=torch.bfloat16), "step": 3}
    with streamxf.open(path, "wb", chain=chain, block_size=BLOCK) as file:
        torch.save(state, file)
    with streamxf.open(path, keys=KEY if chain == FULL else None) as file:
        loaded = torch.load(file, weights_only=True)
    assert loaded["step"] == 3
    assert all(torch.equal(loaded[name], state[name]) for name in ("w", "half"))


@CHAINS
@pytest.mark.parametrize("dtype", ["f4", ">f8", "c16", "?", "u2", "M8[s]"])
def test_numpy(path, chain, dtype):
    array = np.arange(50_000).astype(dtype).reshape(100, 500)
    with streamxf.open(path, "wb", chain=chain, block_size=BLOCK) as file:
        np.save(file, array)
        np.save(file, array.T)
    with streamxf.open(path, keys=KEY if chain == FULL else None) as file:
        first, second = np.load(file), np.load(file)
    assert first.dtype == array.dtype
    np.testing.assert_array_equal(first, array)
    np.testing.assert_array_equal(second, array.T)


@CHAINS
def test_safetensors(path, tmp_path, chain):
    state = {"a": torch.randn(64, 64), "b": torch.arange(10, dtype=torch.int16)}
    with streamxf.open(path, "wb", chain=chain) as file:
        file.write(save(state))
    with streamxf.open(path, keys=KEY if chain == FULL else None) as file:
        data = file.read()
    assert all(torch.equal(value, state[name]) for name, value in load(data).items())
    plain = tmp_path / "plain.safetensors"
    plain.write_bytes(data)
    with safe_open(plain, "pt") as tensors:
        assert set(tensors.keys()) == set(state)


@pytest.mark.parametrize(
    "array",
    [
        *[np.arange(6, dtype="f2"), np.arange(6, dtype=">i4"), np.arange(6, dtype="c16").reshape(2, 3), np.array(2.5)],
        *[np.zeros((3, 0)), np.zeros(3, dtype=[("a", "i4"), ("b", "f8")])],
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_are_taken_as_their_bytes(array):
    assert streamxf.decode(streamxf.encode(array)) == array.tobytes()
    target = np.empty_like(array)
    with streamxf.open(io.BytesIO(streamxf.encode(array))) as file:
        assert file.readinto(target) == array.nbytes
    assert target.tobytes() == array.tobytes()


def test_arrays_with_gaps_are_refused():
    with pytest.raises(TypeError, match="contiguous"):
        streamxf.encode(np.arange(10)[::2])


def test_text_layers_and_buffers_of_the_standard_library(path):
    with io.TextIOWrapper(io.BufferedWriter(streamxf.open(path, "wb")), encoding="utf-8") as file:
        file.write("übung\n" * 100)
    with io.TextIOWrapper(io.BufferedReader(streamxf.open(path)), encoding="utf-8") as file:
        assert sum(line == "übung\n" for line in file) == 100


def tarred(file, data, **how):
    with tarfile.open(fileobj=file, **how) as archive:
        for name in "a", "b":
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def zipped(file, data):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", data)
        with archive.open("b", "w", force_zip64=True) as entry:
            entry.write(data)


def packed(module):
    def write(file, data):
        with module(file, "wb") as inner:
            inner.write(data)

    return write


def in_lines(file, data):
    text = io.TextIOWrapper(file, encoding="ascii", newline="\n", write_through=True)
    csv.writer(text).writerows([[number, number * 7] for number in range(2000)])
    text.detach()


def buffered(file, data):
    inner = io.BufferedWriter(file, 1000)
    for at in range(0, len(data), 333):
        inner.write(data[at : at + 333])
    inner.detach()


WRITERS = {
    "tar": lambda file, data: tarred(file, data, mode="w"),
    "tar as a stream": lambda file, data: tarred(file, data, mode="w|"),
    "tar with gzip": lambda file, data: tarred(file, data, mode="w:gz"),
    "tar with xz": lambda file, data: tarred(file, data, mode="w:xz"),
    "zip": zipped,
    "gzip": packed(lambda file, mode: gzip.GzipFile("", mode, 1, file, 0)),
    "xz": packed(lzma.LZMAFile),
    "text": in_lines,
    "buffered": buffered,
    "copied": lambda file, data: shutil.copyfileobj(io.BytesIO(data), file, 1000),
    "lines": lambda file, data: file.writelines(data.splitlines(keepends=True)),
    "pickle": lambda file, data: pickle.Pickler(file, 5).dump({"data": data, "more": [bytearray(data)] * 2}),
    "npz": lambda file, data: np.savez(file, a=np.frombuffer(data, "u1"), b=np.arange(5)),
}


@pytest.mark.parametrize("what", WRITERS)
def test_whatever_writes_to_a_file_of_lzma(path, what):
    """And writes the same there, with the same places told on the way."""
    data = np.random.default_rng(5).integers(0, 200, 100_000).astype("u1").tobytes()
    with lzma.open(path.with_suffix(".xz"), "wb", preset=0) as xz:
        WRITERS[what](xz, data)
    with streamxf.open(path, "wb", chain="lz4+checksum", block_size=BLOCK) as file:
        WRITERS[what](file, data)
        told = file.tell()
    with lzma.open(path.with_suffix(".xz")) as xz, streamxf.open(path) as file:
        found, other = file.read(), xz.read()
    assert len(found) == told > 1000
    if what == "tar with gzip":  # which has the file's name, and the time
        with tarfile.open(fileobj=io.BytesIO(found)) as archive:
            assert archive.extractfile("b").read() == data
    elif what in ("zip", "npz"):
        assert len(found) == len(other)
    else:
        assert found == other


def test_methods_of_files_that_are_written(path):
    with lzma.open(path.with_suffix(".xz"), "wb") as theirs, streamxf.open(path, "wb") as file:
        for name in {*dir(theirs)}:
            assert hasattr(file, name) or name.startswith("_") or name == "name"
        for each in (theirs, file):
            assert (each.readable(), each.seekable(), each.isatty(), each.flush()) == (False, False, False, None)
            for call in ("read", "read1", "peek", "readline", "readlines", "detach", "truncate", "__next__"):
                with pytest.raises((OSError, ValueError)):
                    getattr(each, call)()
            for call in ("seek", "readinto", "readinto1"):
                with pytest.raises(OSError, match=""):
                    getattr(each, call)(0 if call == "seek" else bytearray(5))
        assert isinstance(file, io.BufferedIOBase)
        assert file.mode == "wb"
        assert not hasattr(file, "name"), "Keras would write the weights, not encrypted, beside a file that has one"
        with pytest.raises(OSError, match="fileno"):
            file.fileno()
    with pytest.raises(ValueError, match="closed"):
        file.tell()
