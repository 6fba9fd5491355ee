"""A whole checkpoint that is damaged or hostile, and the tools that are meant for such: `streamxf.salvage`, with its
metadata and without, `streamxf.verify` and `streamxf.clean`.

Inputs are those of the target ``checkpoint``.
"""

import streamxf
from streamxf.tools.salvage.fill import Salvaged
from tests.fuzz import target_checkpoint
from tests.fuzz.oracle import agree, attempt
from tests.fuzz.target import Target
from tests.fuzz.target_checkpoint import streams_of, unpacked
from tests.samples import KEY


def run(data: bytes) -> None:
    with unpacked(data) as folder:
        for keys in (KEY, None):
            whole, _ = attempt(lambda keys=keys: streamxf.load_intact(folder, keys=keys))
            parts, _ = attempt(lambda keys=keys: streamxf.load_intact(folder, keys=keys, partial=True))
            _check(whole)
            _check(parts)
            report, _ = attempt(lambda keys=keys: streamxf.verify(folder, keys=keys))
            if report is not None and not report.damaged and not report.unchecked:
                streams, error = attempt(lambda keys=keys: streams_of(folder, keys))
                agree(streams is not None, f"verify finds no damage, and not everything can be read: {error}")
            attempt(lambda keys=keys: str(streamxf.clean(folder, keys=keys, dry_run=True)))
        metadata = (folder / ".metadata").read_bytes()
        (folder / ".metadata").write_bytes(metadata[:-1])
        for keys in (KEY, None):
            _check(attempt(lambda keys=keys: streamxf.load_intact(folder, keys=keys, without_metadata=True))[0])
            attempt(lambda keys=keys: str(streamxf.verify(folder, keys=keys)))


def _check(found: Salvaged | None) -> None:
    if found is not None:
        str(found)
        agree(not set(found.loaded) & set(found.missing), "an item is loaded and missing")


TARGET = Target(run, target_checkpoint.seeds, target_checkpoint.mutate, target_checkpoint.TARGET.max_len)
