"""The command ``python -m docs.recordings [PART...]``: writes what docs/ shows of the command line.

The parts are the reference, which takes a moment, the session, and the picture of a terminal; all
of them by default.
"""

import sys

from docs.recordings.manual import manual
from docs.recordings.page import ROOT, replace
from docs.recordings.picture import SHOWN, svg
from docs.recordings.reference import reference
from docs.recordings.session import as_text, record

MANUAL = ROOT / "docs" / "streamxf.1"
IMAGE = ROOT / "docs" / "images" / "terminal.svg"


def main(parts: list[str]) -> int:
    """Write the parts that are named."""
    if unknown := sorted(set(parts) - PARTS.keys()):
        print(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    for name in parts or PARTS:
        PARTS[name]()
    return 0


def _reference() -> None:
    replace("reference", reference())
    MANUAL.write_text(manual())


def _session() -> None:
    replace("session", f"```text\n{as_text([typed for typed in record() if typed.line not in SHOWN])}\n```")


def _picture() -> None:
    IMAGE.parent.mkdir(exist_ok=True)
    IMAGE.write_text(svg(record()))


PARTS = {"reference": _reference, "session": _session, "picture": _picture}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
