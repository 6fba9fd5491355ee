"""Contents made by hand, as any format would give them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from streamxf.formats.contents import Contents, Entry, Format, Part
from streamxf.tools.inspect.values import Values
from streamxf.tools.values.statistics import Statistics, ValueCounter

CHAIN = ("streamxf.floatzip/1", "streamxf.checksum/1?algorithm=crc32c")


def tensor(
    name: str, shape: tuple[int, ...], ratio: float = 1.0, dtype: str = "bfloat16", chain: tuple[str, ...] = CHAIN
) -> Entry:
    """A tensor in one part."""
    raw = math.prod(shape) * getattr(torch, dtype).itemsize
    part = Part((0,) * len(shape), shape, "__0_0.distcp", 0, round(raw * ratio), chain)
    return Entry(name, dtype, shape, raw, (part,))


def thing(name: str, stored: int = 100, chain: tuple[str, ...] = CHAIN) -> Entry:
    """An object that is no tensor."""
    return Entry(name, None, (), None, (Part((), (), "__0_0.distcp", 0, stored, chain),))


def contents(entries: Iterable[Entry], kind: Format = Format.STREAMXF, **more: object) -> Contents:
    """A checkpoint of these."""
    named = {entry.name: entry for entry in entries}
    stored = sum(entry.stored_bytes for entry in named.values())
    return Contents("/data/step-1000", kind, named, {".metadata": 1000, "__0_0.distcp": stored}, **more)


def transformer(layers: int = 4, width: int = 64, experts: int = 0) -> list[Entry]:
    """The tensors of a language model; later layers compress a little worse."""
    found = [tensor("model.embed_tokens.weight", (1000, width), 0.71)]
    for layer in range(layers):
        place, worse = f"model.layers.{layer}", layer / max(layers, 1) / 10
        for number, role in enumerate(("q_proj", "k_proj", "v_proj", "o_proj")):
            found.append(tensor(f"{place}.self_attn.{role}.weight", (width, width), 0.66 + number / 100 + worse))
        for expert in range(experts):
            found.append(tensor(f"{place}.mlp.experts.{expert}.up_proj.weight", (4 * width, width), 0.67 + worse))
        if not experts:
            found.append(tensor(f"{place}.mlp.up_proj.weight", (4 * width, width), 0.67 + worse))
        found.append(tensor(f"{place}.input_layernorm.weight", (width,), 0.9, "float32"))
    return [*found, tensor("model.norm.weight", (width,), 0.9, "float32"), thing("step", 40)]


def statistics(*numbers: float) -> Statistics:
    """Those of these numbers."""
    counter = ValueCounter()
    counter.add(torch.tensor(numbers, dtype=torch.float64))
    return counter.result()


def values(entries: Iterable[Entry], **found: Statistics) -> Values:
    """Something for each tensor; `found` has those of some, by their names with ``__`` for dots."""
    named = {name.replace("__", "."): each for name, each in found.items()}
    usual = statistics(*(step / 100 for step in range(-50, 51)))
    return Values({entry.name: named.get(entry.name, usual) for entry in entries if entry.is_tensor})
