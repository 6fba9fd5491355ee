"""A whole checkpoint that is damaged or hostile, and what looks at such: `streamxf.salvage`, with its metadata and
without, `streamxf.verify` and `streamxf.clean`.

Inputs are those of the target ``checkpoint``.
"""

from __future__ import annotations

from typing import Any

import torch
from samples import KEY

import streamxf
from fuzz import target_checkpoint
from fuzz.oracle import agree, attempt
from fuzz.target import Target
from fuzz.target_checkpoint import unpacked


def run(data: bytes) -> None:
    with unpacked(data) as folder:
        if folder is None:
            return
        for keys in (KEY, None):
            attempt(lambda keys=keys: _look_at(streamxf.salvage(folder, keys=keys, partial=True)))
            attempt(lambda keys=keys: _fill(folder, keys))
            attempt(lambda keys=keys: str(streamxf.verify(folder, keys)))
            attempt(lambda keys=keys: str(streamxf.clean(folder, keys=keys, dry_run=True)))
        metadata = (folder / ".metadata").read_bytes()
        (folder / ".metadata").write_bytes(metadata[:-1])
        for keys in (KEY, None):
            attempt(lambda keys=keys: _look_at(streamxf.salvage(folder, keys=keys, without_metadata=True)))
            attempt(lambda keys=keys: str(streamxf.verify(folder, keys)))


def _fill(folder: Any, keys: Any) -> None:
    target = target_checkpoint.blank()
    found = streamxf.salvage(folder, target, keys=keys)
    _look_at(found)
    for name, value in target_checkpoint.blank().items():
        if isinstance(value, torch.Tensor):
            agree((target[name].dtype, target[name].shape) == (value.dtype, value.shape), "a target is another one now")
            if name not in found.loaded:
                agree(not target[name].any(), "what was lost has changed its target")


def _look_at(found: streamxf.Salvaged) -> None:
    str(found)
    agree(not set(found.loaded) & set(found.missing), "an item is loaded and missing")


TARGET = Target(run, target_checkpoint.seeds, target_checkpoint.mutate, target_checkpoint.TARGET.max_len)
