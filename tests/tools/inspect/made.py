"""Contents made by hand, as any format would give them."""

from collections.abc import Iterable

import numpy as np

from streamxf.format.items import Chunk, Item, ObjectItem, Place, TensorItem, elements_size
from streamxf.formats.contents import Contents, Format
from streamxf.tools.inspect.inspect import TensorStatistics
from streamxf.tools.values.statistics import Statistics, ValueCounter

CHAIN = ("streamxf.floatzip/1", "streamxf.checksum/1?algorithm=crc32c")


def chunk(
    offset: tuple[int, ...], shape: tuple[int, ...], stored: int, chain: tuple[str, ...] = CHAIN, at: int = 0
) -> Chunk:
    return Chunk(offset, shape, Place("__0_0.distcp", at, stored, chain), False)


def tensor(
    name: str, shape: tuple[int, ...], ratio: float = 1.0, dtype: str = "bfloat16", chain: tuple[str, ...] = CHAIN
) -> TensorItem:
    """A tensor in one chunk."""
    stored = round(elements_size(dtype, shape) * ratio)
    return TensorItem(name, dtype, shape, (chunk((0,) * len(shape), shape, stored, chain),))


def thing(name: str, stored: int = 100, chain: tuple[str, ...] = CHAIN) -> ObjectItem:
    """An object."""
    return ObjectItem(name, Place("__0_0.distcp", 0, stored, chain))


def contents(items: Iterable[Item], kind: Format = Format.STREAMXF, **more: object) -> Contents:
    """A checkpoint of these."""
    named = {item.name: item for item in items}
    stored = sum(item.stored_bytes for item in named.values())
    return Contents("/data/step-1000", kind, named, {".metadata": 1000, "__0_0.distcp": stored}, **more)


def transformer(layers: int = 4, width: int = 64, experts: int = 0) -> list[Item]:
    """The tensors of a language model; later layers compress a little worse."""
    found: list[Item] = [tensor("model.embed_tokens.weight", (1000, width), 0.71)]
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
    counter.add(np.array(numbers, np.float64).view(np.uint64), "float64")
    return counter.result()


def values(items: Iterable[Item], **found: Statistics) -> TensorStatistics:
    """Something for each tensor; `found` has those of some, by their names with ``__`` for dots."""
    named = {name.replace("__", "."): each for name, each in found.items()}
    usual = statistics(*(step / 100 for step in range(-50, 51)))
    return TensorStatistics({item.name: named.get(item.name, usual) for item in items if isinstance(item, TensorItem)})
