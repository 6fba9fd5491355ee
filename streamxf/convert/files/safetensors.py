"""New ``.safetensors`` files, as the safetensors library writes them.

The library sorts tensors by their dtypes, those with the strictest alignment first, and then by their names; its header
is compact JSON, and spaces make its length a multiple of eight.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice

from streamxf.convert.files.layout import File, Run
from streamxf.descriptor import shorten
from streamxf.errors import UnsupportedError
from streamxf.formats.contents import Entry
from streamxf.formats.dtypes import SAFETENSORS, TWO_IN_ONE
from streamxf.formats.safetensors import LENGTH_BYTES, MAX_HEADER
from streamxf.wording import many

METADATA = "__metadata__"
_MOST = 5  # that an error names
_WIDE = ("U64", "I64", "F64", "C64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16")
_NARROW = ("F8_E5M2FNUZ", "F8_E4M3FNUZ", "F8_E8M0", "F8_E4M3", "F8_E5M2", "I8", "U8", "F4", "BOOL")
_RANKS = {name: rank for rank, name in enumerate(_WIDE + _NARROW)}
_NAMES = {torch_name: name for name, (torch_name, _) in SAFETENSORS.items()}


def check_fit(entries: Mapping[str, Entry]) -> None:
    """Refuse tensors that the format has no place for; they are given by the names to be written.

    Raises
    ------
    UnsupportedError
    """
    if strange := {name: entry for name, entry in entries.items() if entry.dtype not in _NAMES}:
        raise UnsupportedError(
            f"safetensors has no dtype for {many(len(strange), 'tensor')}: {_shown(strange)}. Write another format, or "
            "choose tensors by only="
        )
    if unnamed := {name: entry for name, entry in entries.items() if name == METADATA or not _is_text(name)}:
        raise UnsupportedError(f"safetensors has no place for tensors of such names: {_shown(unnamed)}")


def fresh(file: str, entries: Mapping[str, Entry], metadata: Mapping[str, str]) -> File:
    """A file of these tensors, as the library would write it.

    Parameters
    ----------
    file : str
        Its name.
    entries : mapping of str to Entry
        By the names to be written; they pass `check_fit`.
    metadata : mapping of str to str
        What stands in the header beside the tensors.

    Raises
    ------
    UnsupportedError
        If there are more tensors than a header may list.
    """
    ordered = sorted(entries.items(), key=lambda item: (_RANKS[_NAMES[str(item[1].dtype)]], item[0]))
    header: dict[str, object] = {METADATA: dict(sorted(metadata.items()))} if metadata else {}
    at = 0
    runs = []
    for name, entry in ordered:
        run = Run.of(entry)
        dtype = _NAMES[str(entry.dtype)]
        shape = [*entry.shape[:-1], 2 * entry.shape[-1]] if dtype == TWO_IN_ONE else list(entry.shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + run.size]}
        at += run.size
        runs.append(run)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    if len(text) > MAX_HEADER:
        raise UnsupportedError(
            f"the header would have {len(text):,} bytes, and safetensors allows {MAX_HEADER:,}: write several files"
        )
    return File(file, (len(text).to_bytes(LENGTH_BYTES, "little") + text, *runs))


def _is_text(name: str) -> bool:
    return name == name.encode("utf-8", "replace").decode("utf-8")


def _shown(entries: Mapping[str, Entry]) -> str:
    shown = ", ".join(f"{shorten(name)} ({entry.dtype})" for name, entry in islice(entries.items(), _MOST))
    return f"{shown} and {len(entries) - _MOST:,} more" if len(entries) > _MOST else shown
