"""The chains that ``tune`` and ``bench`` compare, and how they are printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from streamxf.cli import options, show
from streamxf.wording import printable, size_text

if TYPE_CHECKING:
    from streamxf.chain import Chain
    from streamxf.cli.timing import Timing
    from streamxf.tuning.estimate import Estimate

NO_CHAIN = "no chain"
_WIDTH = 80
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LONGEST_LABEL = 32

ChainsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--chain",
        metavar="CHAIN",
        autocompletion=options.codecs_behind,
        help="A chain to try, such as floatzip or zstd:level=3+checksum+encrypt; '' for none. May be given several "
        "times; by default some of each kind.",
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


def print_figures(found: Sequence[tuple[str, Timing | Estimate, str, str]], speeds: tuple[str, str], best: str) -> None:
    """A table and charts of what chains took, and the one to choose. `found` has a chain, its figures and two speeds,
    whose headings are `speeds`.
    """
    out = show.console()
    numbers = ("stored", "of raw", *speeds, "save", "load")
    table = show.table("chain", *numbers, right=numbers)
    for chain, each, *rates in found:
        cells = size_text(each.stored_bytes), f"{each.stored_bytes / each.raw_bytes:.3f}", *rates
        seconds = f"{each.save_seconds:,.3f} s", f"{each.load_seconds:,.3f} s"
        show.row(table, chain or NO_CHAIN, *cells, *seconds, style="bold" if chain == best else "")
    out.print(table)
    width = min(out.width, _WIDTH)
    out.print("\n".join(chart("seconds to save", [(chain, each.save_seconds) for chain, each, *_ in found], width)))
    out.print("\n".join(chart("seconds to load", [(chain, each.load_seconds) for chain, each, *_ in found], width)))
    out.print(f"\nrecommended: {best or NO_CHAIN}")


def chart(title: str, bars: Sequence[tuple[str, float]], width: int) -> list[str]:
    """The lines of a bar chart, none of them longer than `width`: labels, and numbers that are not negative."""
    labels = [printable(label or NO_CHAIN, _LONGEST_LABEL) for label, _ in bars]
    values = [f"{value:,.3f}" for _, value in bars]
    left, right = max(map(len, labels)), max(map(len, values))
    room = max(8, width - left - right - 4)
    longest = max(value for _, value in bars) or 1.0
    drawn = [_drawn(value / longest, room) for _, value in bars]
    lines = zip(labels, drawn, values, strict=True)
    return [title, *(f"  {label:<{left}} {bar} {value:>{right}}" for label, bar, value in lines)]


def _drawn(share: float, room: int) -> str:
    """A bar that fills a share of the room."""
    if not show.can_show(_EIGHTHS):
        return ("#" * max(1, round(share * room))).ljust(room)
    whole, eighths = divmod(max(1, round(share * room * 8)), 8)
    return (_EIGHTHS[8] * whole + (_EIGHTHS[eighths] if eighths else "")).ljust(room)
