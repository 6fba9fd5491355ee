"""New Hugging Face folders: shards of ``.safetensors``, and an index that says which tensor is in which."""

from __future__ import annotations

import json
from collections.abc import Mapping

from streamxf.convert.files import safetensors
from streamxf.convert.files.layout import File, Run
from streamxf.formats.contents import Entry

SHARD_SIZE = 5 * 10**9
"""Bytes of tensors in a shard, as transformers has it."""

INDEX = ".index.json"
WEIGHTS = (".safetensors", ".bin", INDEX)
"""How the names of files end that hold tensors, or say where they are."""


def fresh(entries: Mapping[str, Entry], metadata: Mapping[str, str], shard_size: int) -> list[File]:
    """A folder of these tensors, which pass `safetensors.check_fit`; the index comes last, and where one file is
    enough there is none. A tensor that is larger than `shard_size` has a shard of its own.
    """
    shards = _shards(entries, shard_size)
    if len(shards) == 1:
        return [safetensors.fresh("model.safetensors", shards[0], metadata)]
    files = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    placed = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
    index = {"metadata": {"total_size": sum(Run.of(entry).size for entry in entries.values())}, "weight_map": placed}
    text = json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    written = [safetensors.fresh(file, shard, metadata) for file, shard in zip(files, shards, strict=True)]
    return [*written, File(f"model.safetensors{INDEX}", (text.encode(),))]


def _shards(entries: Mapping[str, Entry], shard_size: int) -> list[dict[str, Entry]]:
    shards: list[dict[str, Entry]] = [{}]
    filled = 0
    for name, entry in entries.items():
        size = Run.of(entry).size
        if shards[-1] and filled + size > shard_size:
            shards.append({})
            filled = 0
        shards[-1][name] = entry
        filled += size
    return shards
