"""What stands in files that are written: every byte where it belongs, from wherever the writing goes on."""

from __future__ import annotations

import io

import pytest
import torch
from compare.memory import Memory
from hypothesis import given
from hypothesis import strategies as st
from streamxf.tools.convert.files import layout, torchfile
from streamxf.tools.convert.files.layout import Cut, File, Run, Segment, pieces

from streamxf.formats import source as formats_source

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.complex128, torch.float8_e4m3fn]


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 9, shape, generator=generator).to(dtype)


def written(source: Memory, file: File, start: int = 0) -> bytes:
    return b"".join(bytes(piece) for piece in pieces(source, file, start))


def as_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(layout.bytes_of(tensor.detach().contiguous()))


@given(
    st.lists(st.integers(0, 90), max_size=6),
    st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), max_size=6),
    st.integers(1, 64),
    st.integers(1, 64),
    st.data(),
)
def test_every_byte_is_where_it_belongs_from_wherever_the_writing_starts(cuts, shapes, limit, window, data):
    """Tensors in some order of dimensions, and between them the parts of one row of bytes."""
    tensors = {
        str(number): filled(shape, data.draw(st.sampled_from(DTYPES)), number) for number, shape in enumerate(shapes)
    }
    rest = filled((sum(cuts),), torch.uint8, 99)
    source = Memory({**tensors, "rest": rest})
    entries = source.contents.entries
    segments: list[Segment] = [b"begin"]
    wanted, at = b"begin", 0
    for number in range(max(len(cuts), len(shapes))):
        if number < len(cuts):
            segments.append(Cut(entries["rest"], at, cuts[number]))
            wanted += as_bytes(rest[at : at + cuts[number]])
            at += cuts[number]
        if number < len(shapes):
            order = tuple(data.draw(st.permutations(range(len(shapes[number])))))
            segments.append(Run(entries[str(number)], order))
            wanted += as_bytes(tensors[str(number)].permute(order))
    file = File("x", tuple(segments))
    start = data.draw(st.integers(0, len(wanted)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "boxes_of", lambda entry, size: formats_source.boxes_of(entry, size, limit))
        patch.setattr(layout, "_WINDOW", window)
        assert written(source, file) == wanted
        assert written(source, file, start) == wanted[start:]
    assert file.size == len(wanted)


def test_a_row_of_bytes_is_read_once_however_many_parts_it_has():
    source = Memory({"rest": torch.arange(200, dtype=torch.uint8), "w": torch.zeros(3)})
    entries = source.contents.entries
    segments = [part for at in range(200) for part in (Cut(entries["rest"], at, 1), Run.of(entries["w"]))]
    boxes = []
    read = source.read
    source.read = lambda wanted: read(boxes.append(box) or box for box in wanted)  # type: ignore[method-assign]
    written(source, File("x", tuple(segments)))
    assert sum(box.entry.name == "rest" for box in boxes) == 1


def test_tensors_inside_of_objects_are_written_with_their_values():
    state = {"rng": [torch.arange(5), torch.ones(3)], "w": torch.zeros(4)}
    source = Memory(state)
    file = torchfile.fresh("x.pt", source.contents.entries, {}, source.load_object)
    loaded = torch.load(io.BytesIO(written(source, file)), weights_only=True)
    assert torch.equal(loaded["rng"][0], torch.arange(5))
    assert torch.equal(loaded["rng"][1], torch.ones(3))
    assert torch.equal(loaded["w"], torch.zeros(4))


def test_torch_reads_it_by_mapping_it_into_memory(tmp_path):
    source = Memory({"a": torch.arange(1000.0), "b": torch.arange(7)})
    file = torchfile.fresh("x.pt", source.contents.entries, {}, source.load_object)
    (tmp_path / "x.pt").write_bytes(written(source, file))
    loaded = torch.load(tmp_path / "x.pt", mmap=True, weights_only=True)
    assert torch.equal(loaded["a"], torch.arange(1000.0))
    assert torch.equal(loaded["b"], torch.arange(7))


def test_it_takes_no_memory_to_lay_out_a_large_file():
    """A tensor of 64 GiB, which no memory could hold here, is laid out in front of its bytes."""
    large = torch.zeros(1).expand(2**30, 16)
    source = Memory({"large": large})
    file = torchfile.fresh("x.pt", source.contents.entries, {}, source.load_object)
    assert file.size > large.numel() * 4
    assert len(file.segments) == 3


def test_what_comes_before_a_start_is_not_read():
    source = Memory({"a": torch.arange(100), "b": torch.arange(50)})
    entries = source.contents.entries
    file = File("x", (Run.of(entries["a"]), Run.of(entries["b"])))
    assert written(source, file, 800) == as_bytes(torch.arange(50))
    assert source.largest == 400
