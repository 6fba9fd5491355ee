"""Hugging Face folders to be written: shards of ``.safetensors``, and an index that says which tensor is in which."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from streamxf.convert.files import safetensors
from streamxf.convert.files.layout import File, Run
from streamxf.convert.keep import MAX_KEPT
from streamxf.convert.origin import ITEM, Origin, Pickled
from streamxf.descriptor import shorten
from streamxf.errors import MetadataError
from streamxf.formats.contents import Entry

SHARD_SIZE = 5 * 10**9
"""Bytes of tensors in a shard, as transformers has it."""

INDEX = ".index.json"
WEIGHTS = (".safetensors", ".bin", INDEX)
"""How the names of files end that hold tensors, or say where they are."""

_MAX_HEADS = 2**30  # bytes of all headers together; a text that pickle stores once may be that of many files


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


def restored(
    origin: Origin, entries: Mapping[str, Entry], restore_pickled: Callable[[str, Pickled], File]
) -> list[File]:
    """A folder as it was packed, the index last.

    Parameters
    ----------
    restore_pickled : callable
        From the name of a ``.bin`` shard and what was kept of it to the file.

    Raises
    ------
    MetadataError
        If the checkpoint has other tensors than the files had, or a file would lie outside of the folder.
    """
    names = [*origin.heads, *origin.pickled, *origin.files]
    if len(set(names)) < len(names) or not all(map(_is_inside, names)) or any("/" in name for name in origin.files):
        raise MetadataError("it names a file twice, or one that does not belong into the folder", item=ITEM)
    if sum(map(len, origin.heads.values())) > _MAX_HEADS or sum(map(len, origin.files.values())) > MAX_KEPT:
        raise MetadataError("it has more bytes of headers and small files than pack keeps", item=ITEM)
    files = [safetensors.restored(name, head, entries) for name, head in origin.heads.items()]
    files += [restore_pickled(name, kept) for name, kept in origin.pickled.items()]
    others = sorted(origin.files, key=lambda name: (name.endswith(INDEX), name))
    return files + [File(name, (origin.files[name],)) for name in others]


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


def _is_inside(name: str) -> bool:
    strange = not name.isprintable() or "\\" in name or ":" in name or shorten(name, 1000) != name
    return not strange and all(part not in ("", ".", "..") for part in name.split("/"))
