"""What stands in files that are written: every byte where it belongs."""

import io
import zipfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamxf.checkpoint.reading import Box
from streamxf.formats.contents import Format
from streamxf.tools.convert.plan import NewFile, Stretch, fresh, pieces
from tests.formats.samples import tensor_item
from tests.tools.elements import Memory, elements_of

boxes_of = Box.of
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.complex128, torch.float8_e4m3fn]


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 9, shape, generator=generator).to(dtype)


def written(source: Memory, file: NewFile) -> bytes:
    return b"".join(bytes(piece) for piece in pieces(source, file))


def as_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(elements_of(tensor).tobytes())


def torch_file(source: Memory) -> NewFile:
    (file,) = fresh(source, Format.TORCH, "x.pt", (), "", 1, skip_objects=False).files
    return file


@given(
    st.lists(st.integers(0, 90), max_size=6),
    st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), max_size=6),
    st.integers(1, 64),
    st.data(),
)
def test_every_byte_is_where_it_belongs(cuts, shapes, limit, data):
    """Tensors in some order of dimensions, and between them the parts of one row of bytes, which may be an item."""
    tensors = {
        str(number): filled(shape, data.draw(st.sampled_from(DTYPES)), number) for number, shape in enumerate(shapes)
    }
    rest = filled((sum(cuts),), torch.uint8, 99)
    source = Memory({**tensors, "rest": rest})
    runs: list[Stretch] = []
    wanted, at = b"", 0
    for number in range(max(len(cuts), len(shapes))):
        if number < len(cuts):
            wanted += as_bytes(rest[at : at + cuts[number]])
            at += cuts[number]
        if number < len(shapes):
            order = tuple(data.draw(st.permutations(range(len(shapes[number])))))
            runs.append(Stretch(len(wanted), tensor_item(source, str(number)), order))
            wanted += as_bytes(tensors[str(number)].permute(order))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Box, "of", lambda item, _=0: boxes_of(item, limit))
        for around in (tensor_item(source, "rest"), as_bytes(rest)):
            file = NewFile("x", runs, around)
            assert written(source, file) == wanted
            assert file.size == len(wanted)


def test_a_row_of_bytes_is_read_once_however_many_parts_it_has():
    source = Memory({"rest": torch.arange(200, dtype=torch.uint8), "w": torch.zeros(3)})
    runs = [Stretch(13 * number + 1, tensor_item(source, "w")) for number in range(200)]
    boxes = []
    read = source.read_boxes
    source.read_boxes = lambda wanted: read(boxes.append(box) or box for box in wanted)  # type: ignore[method-assign]
    written(source, NewFile("x", runs, tensor_item(source, "rest")))
    assert sum(box.item.name == "rest" for box in boxes) == 1


def test_tensors_inside_of_objects_are_written_with_their_values():
    source = Memory({"rng": [torch.arange(5), torch.ones(3)], "w": torch.zeros(4)})
    found = torch.load(io.BytesIO(written(source, torch_file(source))), weights_only=True)
    assert torch.equal(found["rng"][0], torch.arange(5))
    assert torch.equal(found["rng"][1], torch.ones(3))
    assert torch.equal(found["w"], torch.zeros(4))


def test_each_record_has_its_crc_as_zip_archives_have():
    """Of tensors that are read box by box, of none, of those inside objects, of the pickle and of what follows."""
    tensors = {"w": torch.randn(700, 5), "empty": torch.zeros(0, 3), "b": torch.arange(9), "scalar": torch.tensor(2.5)}
    source = Memory({**tensors, "rng": [torch.arange(5)], "note": "text"})
    file = torch_file(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Box, "of", lambda item, _=0: boxes_of(item, 1000))
        first, again = written(source, file), written(source, file)
    assert first == again
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert archive.testzip() is None
        assert all(record.CRC for record in archive.infolist() if record.file_size)
        assert len(archive.infolist()) == len(tensors) + 4
    found = torch.load(io.BytesIO(first), weights_only=True)
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_torch_reads_it_by_mapping_it_into_memory(tmp_path):
    source = Memory({"a": torch.arange(1000.0), "b": torch.arange(7)})
    (tmp_path / "x.pt").write_bytes(written(source, torch_file(source)))
    found = torch.load(tmp_path / "x.pt", mmap=True, weights_only=True)
    assert torch.equal(found["a"], torch.arange(1000.0))
    assert torch.equal(found["b"], torch.arange(7))


def test_it_takes_no_memory_to_lay_out_a_large_file():
    """A tensor of 64 GiB, which no memory could hold here, is laid out in front of its bytes."""
    large = torch.zeros(1).expand(2**30, 16)
    file = torch_file(Memory({"large": large}))
    assert file.size > large.numel() * 4
    assert len(file.runs) == 1
