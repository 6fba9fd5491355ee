"""Layers side by side."""

from __future__ import annotations

from streamxf.tools.inspect.tree import stacks_of
from tests.tools.inspect.made import tensor, thing, transformer


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
