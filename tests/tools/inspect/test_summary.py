"""Sums over what a checkpoint holds."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from streamxf.format.items import TensorItem
from streamxf.formats.contents import Format
from streamxf.tools.inspect.inspect import ItemTotals, Summary, chain_text, inspect
from tests.dcp.shards import save_shards
from tests.tools.inspect.made import CHAIN, chunk, contents, tensor, thing, transformer

PLAIN = ("streamxf.zstd/1",)


def test_totals_and_dtypes() -> None:
    made = [
        tensor("a", (10, 10), 0.5),
        tensor("b", (100,), 0.75, "float32"),
        tensor("empty", (0, 3), dtype="float32"),
        tensor("scalar", (), dtype="int64"),
        thing("o", 30),
    ]
    found = Summary.of(contents(made))
    assert found.total == ItemTotals(
        tensors=4, objects=1, elements=201, raw_bytes=608, stored_bytes=100 + 300 + 8, object_bytes=30
    )
    assert list(found.dtypes) == ["float32", "bfloat16", "int64"]
    assert found.dtypes["float32"] == ItemTotals(tensors=2, elements=100, raw_bytes=400, stored_bytes=300)
    assert found.dtypes["bfloat16"].ratio == 0.5
    assert found.shards == 4
    assert found.total.items == 5


@pytest.mark.parametrize(("dtype", "size"), [("qint8", 4), ("quint8", 4), ("qint32", 16), ("quint4x2", 2)])
def test_quantized_tensors_have_the_size_of_their_codes(dtype: str, size: int) -> None:
    found = Summary.of(contents([TensorItem("w", dtype, (1, 4), (chunk((0, 0), (1, 4), 8, CHAIN),))]))
    (entry,) = found.as_dict(items=True)["entries"]
    assert (found.total.raw_bytes, entry["raw_bytes"], entry["ratio"]) == (size, size, 8 / size)


def test_a_tensor_in_parts_of_several_chains() -> None:
    chunks = (chunk((0, 0), (2, 3), 10, CHAIN), chunk((2, 0), (1, 3), 20, PLAIN))
    found = Summary.of(contents([TensorItem("w", "float32", (3, 3), chunks)]))
    assert found.chains == {
        PLAIN: ItemTotals(tensors=1, elements=3, raw_bytes=12, stored_bytes=20),
        CHAIN: ItemTotals(tensors=1, elements=6, raw_bytes=24, stored_bytes=10),
    }
    assert (found.shards, found.total.raw_bytes, found.total.elements) == (2, 36, 9)


def test_nothing_at_all() -> None:
    found = Summary.of(contents([]))
    assert found.total.ratio is None
    assert found.largest() == []
    assert found.as_dict(items=True)["entries"] == []


def test_the_largest() -> None:
    items = [tensor(f"w{size}", (size,), 1.0, "uint8") for size in (5, 500, 50, 5000)]
    found = Summary.of(contents([*items, thing("o", 10**6)]))
    assert [item.name for item in found.largest(2)] == ["w5000", "w500"]


@given(st.lists(st.tuples(st.sampled_from(["float32", "uint8"]), st.integers(0, 50), st.integers(0, 99)), max_size=20))
def test_groups_add_up(drawn: list[tuple[str, int, int]]) -> None:
    entries = [tensor(f"t{i}", (size,), ratio / 50, dtype) for i, (dtype, size, ratio) in enumerate(drawn)]
    found = Summary.of(contents(entries))
    for groups in (found.dtypes, found.chains):
        total = ItemTotals()
        for totals in groups.values():
            total.merge(totals)
        assert total == found.total


@pytest.mark.parametrize("kind", Format)
def test_json(kind: Format) -> None:
    made = contents([*transformer(), thing("odd \udc80\x1b")], kind, packages={"torch": "2.13.0"}, key_ids=("raw:01",))
    found = json.loads(json.dumps(Summary.of(made).as_dict(largest=3, items=True)))
    assert found["format"] == str(kind)
    assert len(found["largest_tensors"]) == 3
    assert [item["name"] for item in found["entries"]] == list(made.items)
    assert found["entries"][0] == {
        "name": "model.embed_tokens.weight",
        "dtype": "bfloat16",
        "shape": [1000, 64],
        "raw_bytes": 128000,
        "stored_bytes": 90880,
        "ratio": 0.71,
        "shards": 1,
        "chains": ["+".join(each.split("/")[0].removeprefix("streamxf.") for each in CHAIN)],
    }
    assert found["entries"][-1]["shape"] is found["entries"][-1]["raw_bytes"] is found["entries"][-1]["ratio"] is None
    assert sum(entry["stored_bytes"] for entry in found["by_dtype"]) == found["stored_bytes"]
    assert found["packages"] == {"torch": "2.13.0"}
    assert found["key_ids"] == ["raw:01"]


def test_memory_that_tensors_share(tmp_path: Path) -> None:
    weight = torch.zeros(100, 10)
    torch.save({"in": weight, "out": weight, "rows": weight[:10], "bias": torch.zeros(10)}, tmp_path / "tied.pt")
    found = inspect(tmp_path / "tied.pt")
    assert found.notes[-1] == "Stored bytes of 2 tensors are shared with others; each counts in full."
    assert found.total.ratio == 1
    torch.save({"in": weight, "bias": torch.zeros(10)}, tmp_path / "apart.pt")
    assert inspect(tmp_path / "apart.pt").notes == ()
    for name in ("1", "2"):
        save_file({name: weight}, tmp_path / f"model-{name}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {name: f"model-{name}.safetensors" for name in ("1", "2")}})
    )
    assert inspect(tmp_path).notes == (), "equal places in two files"


def test_chains_for_people() -> None:
    assert chain_text(CHAIN) == "floatzip+checksum"
    assert chain_text(()) == "none"
    assert chain_text(("acme.delta/3?x=1", "streamxf.encrypt/1")) == "acme.delta+encrypt"


def test_items_of_one_name_are_told_apart_by_their_ranks(tmp_path: Path) -> None:
    """Ranks saved on their own, and each has a tensor `w`: names, and statistics, are those of each rank."""
    states = [{"w": torch.full((4,), float(rank))} for rank in range(3)]
    save_shards(tmp_path, states, use_collectives=False)
    summary = inspect(tmp_path, values=True)
    entries = {entry["name"]: entry["values"]["mean"] for entry in summary.as_dict(items=True)["entries"]}
    assert entries == {"w": 0.0, "w (rank 1)": 1.0, "w (rank 2)": 2.0}
    assert summary.values is not None
    assert summary.values.zeros == ("w",)
