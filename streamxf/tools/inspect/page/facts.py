"""The parts of the page that need no script: figures, tables of dtypes and chains, and who wrote the checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from streamxf.tools.inspect.summary import Summary, chain_text, ratio_text
from streamxf.tools.inspect.tally import Tally
from streamxf.wording import many, printable, size_text

MAX_LINES = 40


def figures(summary: Summary) -> str:
    """The tiles at the top."""
    total, contents = summary.total, summary.contents
    stored = total.stored_bytes + total.object_bytes
    shown = [
        ("Stored", size_text(stored), many(len(contents.files), "file")),
        ("In memory", size_text(total.raw_bytes), f"{count_text(total.elements)} elements"),
        ("Stored / in memory", ratio_text(total.ratio), _saved(total)),
        ("Tensors", f"{total.tensors:,}", many(summary.shards, "shard")),
        ("Other objects", f"{total.objects:,}", size_text(total.object_bytes)),
    ]
    if (values := summary.values) is not None:
        broken = len({*values.nan, *values.inf})
        zeros = f"{many(len(values.zeros), 'tensor')} of zeros" if values.zeros else "no tensor of zeros"
        shown.append(("NaN or infinities", f"in {many(broken, 'tensor')}" if broken else "none", zeros))
    return "".join(
        f"<div class=figure><dt>{escape(label)}</dt><dd>{escape(value)}</dd><dd class=more>{escape(more)}</dd></div>"
        for label, value, more in shown
    )


def groups(summary: Summary) -> str:
    """A table of dtypes, and one of chains."""
    chains = {chain_text(chain): (" + ".join(chain), tally) for chain, tally in summary.chains.items()}
    return _table("dtype", [(dtype, dtype, tally) for dtype, tally in summary.dtypes.items()]) + _table(
        "chain", [(label, whole, tally) for label, (whole, tally) in chains.items()]
    )


def facts(summary: Summary) -> str:
    """Who wrote it, with what, and what a reader should know."""
    contents = summary.contents
    shown: list[tuple[str, list[str]]] = [
        ("Format", [str(contents.format)]),
        ("Written by", [f"{name} {version}" for name, version in contents.packages.items()]),
        ("Save", list(contents.save_ids)),
        ("Opened by keys", list(contents.key_ids)),
        ("Signed by, unchecked", list(contents.signers)),
        ("Metadata", [f"{name}: {value}" for name, value in contents.extra.items()]),
        ("Notes", list(summary.notes)),
    ]
    return "".join(
        f"<dt>{escape(label)}</dt>" + "".join(f"<dd>{_text(line)}</dd>" for line in _cut(lines))
        for label, lines in shown
        if lines
    )


def count_text(number: int) -> str:
    """A large number, as models are called by it."""
    for unit, scale in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= scale:
            return f"{number / scale:,.1f} {unit}"
    return str(number)


def _saved(total: Tally) -> str:
    if total.ratio is None:
        return "no tensors"
    less = size_text(abs(total.raw_bytes - total.stored_bytes))
    return f"{less} {'less' if total.ratio <= 1 else 'more'}"


def _table(heading: str, rows: Iterable[tuple[str, str, Tally]]) -> str:
    cells = "".join(
        f'<tr><th scope=row title="{_text(whole)}">{_text(label)}</th><td>{tally.items:,}</td>'
        f"<td class=wide>{size_text(tally.raw_bytes)}</td><td>{size_text(tally.stored_bytes + tally.object_bytes)}</td>"
        f"<td>{ratio_text(tally.ratio)}</td></tr>"
        for label, whole, tally in rows
    )
    heads = "".join(
        f"<th scope=col{' class=wide' * (name == 'in memory')}>{name}</th>"
        for name in (heading, "items", "in memory", "stored", "ratio")
    )
    return f"<div class=scroll><table><thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table></div>"


def _cut(lines: list[str]) -> list[str]:
    return lines if len(lines) <= MAX_LINES else [*lines[: MAX_LINES - 1], f"{len(lines) - MAX_LINES + 1:,} more"]


def _text(text: str) -> str:
    return escape(printable(text))
