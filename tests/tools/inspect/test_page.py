"""The page of a checkpoint, as text; what a browser makes of it is in test_page_in_browser.py."""

import base64
import hashlib
import json
import math
from statistics import fmean, pstdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamxf
from streamxf.format.items import Item
from streamxf.formats.contents import Format
from streamxf.tools.inspect.inspect import Summary, TensorStatistics
from streamxf.tools.inspect.page.page import MAX_LAYERS, MAX_ROLES, html_page, page_data, scale_of
from streamxf.tools.values.statistics import Statistics
from tests.tools.inspect.made import contents, statistics, tensor, thing, transformer, values
from tests.tools.inspect.parsed import Page

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x00\x1b\u202e\udc80<!--"

ROLES = {"up": (100, 100), "bias": (4,), "gain": (4,), "down": (100, 100)}


def page(entries: list[Item], kind: Format = Format.STREAMXF, **more: object) -> Page:
    return Page.parse(html_page(Summary.of(contents(entries, kind, **more))))


def test_raw_tensors_are_of_a_chain_of_their_own(tmp_path):
    with streamxf.CheckpointWriter(tmp_path / "raw", chain="raw") as writer:
        writer["a"] = np.ones(3)
    data = page_data(streamxf.inspect(tmp_path / "raw"))
    assert data["chains"] == ["raw"]
    assert data["tree"]["items"][0][-1] == 0


def sums(node: dict) -> list[int]:
    """Items, raw bytes, and stored bytes with those of objects, in a module of the page's data."""
    found = [len(node["items"]), sum(item[3] for item in node["items"]), sum(item[4] for item in node["items"])]
    if "rest" in node:
        items, raw, stored, objects, *_ = node["rest"]
        found = [found[0] + items, found[1] + raw, found[2] + stored + objects]
    for child in node["children"]:
        found = [a + b for a, b in zip(found, sums(child), strict=True)]
    return found


def test_nothing_but_itself():
    found = page(transformer())
    for element in found.elements:
        assert "src" not in element.attributes
        assert not any(name.startswith("on") or name == "style" for name in element.attributes)
        assert element.attributes.get("href") in (None, "data:,")
    assert found.policy.startswith("default-src 'none'; ")


def test_the_policy_allows_this_script_and_this_style_only():
    found = page(transformer())
    (style,) = found.all("style")
    (script,) = (element for element in found.all("script") if not element.attributes)
    for directive, element in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in found.policy
    assert "unsafe" not in found.policy


def test_hostile_names_stay_text():
    entries = [
        tensor(HOSTILE, (3,)),
        thing(f"{HOSTILE}.{HOSTILE}"),
        tensor(f"l.0.{HOSTILE}", (3,)),
        tensor("l.1.w", ()),
    ]
    honest = page([tensor("a", (3,)), thing("b.c"), tensor("l.0.w", (3,)), tensor("l.1.w", ())])
    more = dict.fromkeys(("save_ids", "key_ids", "signers", "notes"), (HOSTILE,))
    found = page(entries, packages={HOSTILE: HOSTILE}, extra={HOSTILE: HOSTILE}, **more)
    assert [e.tag for e in found.elements if e.tag not in ("dt", "dd")] == [
        e.tag for e in honest.elements if e.tag not in ("dt", "dd")
    ]
    text = html_page(Summary.of(contents(entries)))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert text.encode("utf-8")
    assert found.data["tree"]["items"][0][0].startswith("</script><img src=x onerror=alert(1)>\"'&\\x00\\x1b\\u202e")


@given(st.text(max_size=40))
def test_any_name(name: str):
    found = page([tensor(name, (3,)), tensor(41 * "b", (3,))])  # a name that is longer than the other
    assert sums(found.data["tree"]) == [2, 12, 12]


def test_what_is_left_out_is_added_up_where_it_is():
    entries = transformer(8)
    summary = Summary.of(contents(entries))
    found = page_data(summary, max_items=10)
    assert found["left_out"] == len(entries) - 10
    assert sums(found["tree"]) == [
        len(entries),
        summary.total.raw_bytes,
        summary.total.stored_bytes + summary.total.object_bytes,
    ]
    model = next(child for child in found["tree"]["children"] if child["name"] == "model")
    assert model["rest"][0] > 0  # model.norm.weight, for one


@given(st.integers(0, 60))
def test_nothing_gets_lost(most: int):
    entries = [*transformer(6), *(tensor(f"flat{i}", (i,)) for i in range(12)), thing("a.b.c")]
    summary = Summary.of(contents(entries))
    found = sums(page_data(summary, most)["tree"])
    assert found == [len(entries), summary.total.raw_bytes, summary.total.stored_bytes + summary.total.object_bytes]


def test_very_many_items_make_no_larger_page():
    few, many = (
        html_page(Summary.of(contents([tensor(f"table.{i}.shard.{i % 7}.w", (8, 8)) for i in range(count)])), 1000)
        for count in (2_000, 30_000)
    )
    assert len(many) < 1.2 * len(few)
    assert "29,000 smaller items of this checkpoint are added up by module." in many


def test_many_layers_and_roles_share_columns_and_rows():
    entries = [tensor(f"l.{layer}.r{role}", (8, role + 1)) for layer in range(1000) for role in range(60)]
    (stack,) = page_data(Summary.of(contents(entries)))["stacks"]
    assert len(stack["layers"]) <= MAX_LAYERS
    assert (stack["layers"][0], stack["layers"][-1]) == ("0-6", "994-999")
    assert len(stack["roles"]) == MAX_ROLES + 1
    assert stack["roles"][-1] == "20 small ones"
    assert sum(cell[2] for cell in stack["cells"]) == 60_000


def test_small_roles_share_a_row():
    entries = [tensor(f"l.{i}.{role}", shape) for i in range(3) for role, shape in ROLES.items()]
    (stack,) = page_data(Summary.of(contents(entries)))["stacks"]
    assert stack["roles"] == ["up", "down", "2 small ones"]
    assert sum(cell[2] for cell in stack["cells"]) == len(entries)
    (stack,) = page_data(Summary.of(contents([e for e in entries if not e.name.endswith("bias")])))["stacks"]
    assert stack["roles"] == ["up", "gain", "down"]


def test_the_scale_leaves_outliers_aside():
    assert scale_of([(0.66, 10**6), (0.72, 10**6), (9, 4), (None, 0)]) == (0.66, 0.72)
    assert scale_of([(0.1, 4), (0.66, 10**6), (0.7, 10**6)]) == (0.66, 0.71)
    assert scale_of([(1.0, 100)]) == (0.98, 1.03)
    assert scale_of([]) == (0.0, 1.0)
    close = [(0.6597, 4), (0.6601, 10**6), (0.8, 10**6), (0.812, 4), (0.83, 4), (0.5, 4)]
    assert scale_of(close) == (0.65, 0.82)  # what is only just beyond does not look like an outlier


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 1000)), max_size=10))
def test_the_scale_has_two_ends(drawn: list[tuple[float, int]]):
    low, high = scale_of(drawn)
    assert high - low >= 0.05 - 1e-9
    beyond = sum(weight for ratio, weight in drawn if not low <= ratio <= high)
    assert beyond <= 0.02 * sum(weight for _, weight in drawn)


@pytest.mark.parametrize("kind", Format)
def test_facts(kind: Format):
    found = page(transformer(), kind, packages={"torch": "2.13.0"}, key_ids=("raw:01",), extra={"made": "by hand"})
    shown = [element.text for element in found.all("dd")]
    assert {str(kind), "torch 2.13.0", "raw:01", "made: by hand"} <= set(shown)


def test_values_of_items_cells_and_what_is_left_out():
    entries = transformer(4)
    broken, zeros = statistics(float("nan"), float("inf"), 1, 3), statistics(0, 0, 0)
    found = values(entries, model__layers__1__self_attn__q_proj__weight=broken, model__norm__weight=zeros)
    summary = Summary.of(contents(entries), found)
    data = page_data(summary)
    assert data["values"] is True
    items = {}

    def walk(node: dict, place: str = "") -> None:
        items.update({f"{place}{item[0]}": item for item in node["items"]})
        for child in node["children"]:
            walk(child, f"{place}{child['name']}.")

    walk(data["tree"])
    assert len(items["step"]) == 7
    assert items["model.layers.1.self_attn.q_proj.weight"][7] == [4, 1, 1, 0, 1, 3, 2, 1, 1, 3.125, bars(broken), 0, 0]
    assert items["model.norm.weight"][7] == [3, 0, 0, 3, 0, 0, 0, 0, 0, 1, "z", 0, 0]
    (stack,) = data["stacks"]
    cells = {(stack["roles"][cell[0]], cell[1]): cell[5:] for cell in stack["cells"]}
    assert cells["self_attn.q_proj.weight", 1] == [1, 0, 2, 2, 1]
    assert cells["self_attn.k_proj.weight", 1] == [0, 0, 101, 0, 0.291548]
    few = page_data(summary, max_items=0)["tree"]["rest"]
    assert few[4:] == [1, 1]
    assert page_data(Summary.of(contents(entries)))["values"] is False


def bars(found: Statistics) -> str:
    assert found.histogram is not None
    return "".join("0z"[count > 0] for count in found.histogram.counts)


def test_a_cell_of_several_tensors_has_the_deviation_of_all_of_them():
    entries = transformer(3, experts=4)
    several = {f"model__layers__1__mlp__experts__{i}__up_proj__weight": statistics(i, i + 2, i + 4) for i in range(4)}
    (stack,) = page_data(Summary.of(contents(entries), values(entries, **several)))["stacks"]
    (cell,) = (cell for cell in stack["cells"] if stack["roles"][cell[0]].startswith("mlp.experts") and cell[1] == 1)
    numbers = [i + step for i in range(4) for step in (0, 2, 4)]
    assert cell[7:] == [12, pytest.approx(fmean(numbers), rel=1e-3), pytest.approx(pstdev(numbers), rel=1e-3)]


def test_what_needs_attention_is_named():
    entries = [tensor(HOSTILE, (3,)), tensor("b", (3,)), tensor("c", (3,))]
    found = TensorStatistics({HOSTILE: statistics(math.nan, math.nan, 1), "b": statistics(0, 0), "c": statistics(1)})
    text = html_page(Summary.of(contents(entries), found))
    page = Page.parse(text)
    (card,) = (element for element in page.all("section") if "alert" in (element.attributes["class"] or ""))
    assert card.attributes["class"] == "card alert bad"
    assert "2 tensors need attention" in text
    flags = [element.text for element in page.all("span") if "flag" in (element.attributes.get("class") or "")]
    assert flags == ["2 NaN", "all zeros"]
    assert "\x1b" not in text
    assert "in 1 tensor" in [element.text for element in page.all("dd")]
    fine = html_page(Summary.of(contents(entries[2:]), TensorStatistics({"c": statistics(1)})))
    assert 'class="card alert' not in fine
    assert "no tensor of zeros" in fine


def test_a_long_list_of_what_needs_attention_ends():
    entries = [tensor(f"t{number}", (3,)) for number in range(100)]
    text = html_page(Summary.of(contents(entries), TensorStatistics({entry.name: statistics(0) for entry in entries})))
    assert text.count("all zeros</span>") == 20
    assert "80 more" in text


def test_nothing_at_all():
    found = page([])
    assert found.data["stacks"] == []
    assert json.dumps(found.data["tree"]) == '{"name": "", "children": [], "items": []}'
