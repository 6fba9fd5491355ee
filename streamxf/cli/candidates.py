"""The chains that ``tune`` and ``bench`` compare, and the charts of what they found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from streamxf.cli import chart, options, show

if TYPE_CHECKING:
    from streamxf.chain import Chain

NO_CHAIN = "no chain"

ChainsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--chain",
        metavar="CHAIN",
        autocompletion=options.codecs_behind,
        help="A chain to try, such as floatzip or zstd:level=3+checksum+encrypt; '' for none. May be given several "
        "times; "
        "by default some of each kind.",
    ),
]
EncryptOption = Annotated[bool, typer.Option("--encrypt", help="Let the default chains encrypt, too.")]


def chains_to_try(texts: Sequence[str] | None, encrypt: bool) -> list[Chain]:
    """The given chains, or those that are tried by default. Those that encrypt do so under a key made for that."""
    from streamxf.chain import Chain
    from streamxf.codecs.encrypt import Encrypt
    from streamxf.errors import ParameterError
    from streamxf.keys import Key
    from streamxf.tuning.tuner import CANDIDATES

    key = Key.generate()
    if texts:
        if encrypt:
            raise ParameterError("--encrypt is for the default chains; add +encrypt to yours")
        return [Chain.parse(text, key) for text in texts]
    return [Chain([*codecs, Encrypt(key)] if encrypt else codecs) for codecs in CANDIDATES]


def print_charts(rows: Sequence[tuple[str, float, float]]) -> None:
    """Charts of the seconds that saves and loads take; each row is a chain, and its two figures."""
    out = show.console()
    for title, number in (("seconds to save", 1), ("seconds to load", 2)):
        bars = [chart.Bar(row[0] or NO_CHAIN, float(row[number]), f"{row[number]:,.3f}") for row in rows]
        out.print("\n".join(chart.lines(title, bars, min(out.width, chart.WIDTH))))
