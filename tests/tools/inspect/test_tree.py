"""The tree of modules, with equal layers in one line; and layers side by side."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf.format.items import Item
from streamxf.tools.inspect.inspect import MAX_DEPTH, ItemTotals, Module, tree_of, walk
from streamxf.tools.inspect.page.page import stacks_of
from tests.tools.inspect.made import tensor, thing, transformer


def lines(items: list[Item], depth: int | None = None) -> list[str]:
    return ["  " * level + module.name for level, module in walk(tree_of(items), depth)]


def leaves(module: Module) -> Iterator[Module]:
    if module.item is not None:
        yield module
    for child in module.children:
        yield from leaves(child)


def test_equal_layers_stand_in_one_line() -> None:
    assert lines(transformer(32)) == [
        "model",
        "  embed_tokens.weight",
        "  layers.[0-31]",
        "    self_attn",
        "      q_proj.weight",
        "      k_proj.weight",
        "      v_proj.weight",
        "      o_proj.weight",
        "    mlp.up_proj.weight",
        "    input_layernorm.weight",
        "  norm.weight",
        "step",
    ]
    tree = tree_of(transformer(32))
    (layers,) = (module for _, module in walk(tree) if module.name == "layers.[0-31]")
    assert (layers.times, layers.totals.tensors) == (32, 32 * 6)
    assert layers.children[1].totals == ItemTotals.of(e for e in transformer(32) if "up_proj" in e.name)


def test_depth() -> None:
    assert lines(transformer(32), 1) == ["model", "step"]
    assert lines(transformer(32), 2)[1:4] == ["  embed_tokens.weight", "  layers.[0-31]", "  norm.weight"]
    whole = lines(transformer(32))
    assert lines(transformer(32), 3) == [line for line in whole if not line.startswith(" " * 6)]


def test_experts_inside_of_layers() -> None:
    found = lines(transformer(4, experts=8))
    assert "    mlp.experts.[0-7].up_proj.weight" in found


def test_layers_that_differ_stand_apart() -> None:
    entries = [tensor(f"l.{i}.w", (8, 8) if i in (0, 1, 2, 5) else (4, 8)) for i in (10, 0, 1, 2, 3, 4, 5)]
    assert lines(entries) == ["l", "  [0-2,5].w", "  [3-4,10].w"]
    other = [tensor(f"l.{i}.w", (8, 8), dtype="float32" if i % 2 else "bfloat16") for i in range(20)]
    assert lines(other) == ["l", "  [0,2,4,...,18].w", "  [1,3,5,...,19].w"]


def test_numbers_stand_in_their_order() -> None:
    """Some formats sort names as strings."""
    entries = [tensor(f"l.{i}.w", (8, i + 1)) for i in sorted(range(12), key=str)]
    assert lines(entries)[1:] == [f"  {i}.w" for i in range(12)]


def test_names_that_are_not_quite_modules() -> None:
    names = ["a", "a.b", "", ".", "..", "x..y", "01.w", "1.w", "¹.w", "9999999999.w"]
    entries = [tensor(name, (3,)) for name in names]
    tree = tree_of(entries)
    assert sorted(leaf.item.name for leaf in leaves(tree) if leaf.item) == sorted(names)


def test_a_name_of_dots_does_not_exhaust_the_stack() -> None:
    deep = "a." * 100_000
    tree = tree_of([tensor(deep, (3,)), thing("b")])
    (leaf, _) = leaves(tree)
    assert leaf.item is not None
    assert leaf.item.name == deep
    assert max(level for level, _ in walk(tree)) < MAX_DEPTH


PARTS = st.sampled_from(["0", "1", "2", "7", "a", "b", "w", ""])
NAMES = st.lists(st.lists(PARTS, min_size=1, max_size=5).map(".".join), unique=True, max_size=30)


@given(NAMES, st.data())
def test_nothing_is_lost_or_counted_twice(names: list[str], data: st.DataObject) -> None:
    entries = [tensor(name, (data.draw(st.integers(1, 2)),)) for name in names]
    tree = tree_of(entries)
    assert tree.totals == ItemTotals.of(entries)
    assert sum(leaf.times for leaf in leaves(tree)) == len(names)
    for _, module in walk(tree):
        inner = ItemTotals()
        for child in module.children:
            inner.merge(child.totals)
        own = module.totals.items - inner.items
        assert own == (module.times if module.item else 0)


@pytest.mark.parametrize("count", [2, 1000])
def test_a_list_of_tensors(count: int) -> None:
    assert lines([tensor(f"list.{i}", (3,)) for i in range(count)]) == [f"list.[0-{count - 1}]"]


def test_a_transformer() -> None:
    (stack,) = stacks_of(transformer(12))
    assert stack.name == "model.layers"
    assert stack.layers == list(range(12))
    assert stack.roles[0] == "self_attn.q_proj.weight"
    assert len(stack.roles) == 6
    assert len(stack.cells) == 72
    (found,) = stack.cells[0, "self_attn.q_proj.weight"]
    assert found.name == "model.layers.0.self_attn.q_proj.weight"


def test_experts_are_one_role() -> None:
    (stack,) = stacks_of(transformer(3, experts=8))
    assert "mlp.experts.*.up_proj.weight" in stack.roles
    assert len(stack.cells[2, "mlp.experts.*.up_proj.weight"]) == 8


def test_a_single_number_is_not_a_layer() -> None:
    (stack,) = stacks_of([tensor(f"stages.0.blocks.{block}.w", (4,)) for block in (3, 1, 2)])
    assert (stack.name, stack.layers, stack.roles) == ("stages.0.blocks", [1, 2, 3], ["w"])
    assert stacks_of([tensor("a.0.w", (4,)), tensor("b.w", (4,)), thing("x.0"), thing("x.1")]) == []


def test_the_largest_stack_comes_first() -> None:
    small = [tensor(f"encoder.layer.{i}.w", (4,)) for i in range(8)]
    large = [tensor(f"decoder.layer.{i}.w", (9,)) for i in range(8)]
    assert [stack.name for stack in stacks_of([*small, *large])] == ["decoder.layer", "encoder.layer"]


def test_a_list_of_tensors_has_one_role_without_a_name() -> None:
    (stack,) = stacks_of([tensor(f"scales.{i}", (4,)) for i in range(3)])
    assert stack.roles == [""]
