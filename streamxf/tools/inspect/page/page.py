"""`html_page`: from the files next to this one, and what needs no script: figures, tables, and who wrote it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from string import Template

from streamxf.tools.inspect.page.data import MAX_ITEMS, page_data
from streamxf.tools.inspect.summary import ItemTotals, Summary, TensorStatistics, chain_text, ratio_text
from streamxf.tools.values.statistics import Statistics
from streamxf.version import __version__
from streamxf.wording import many, printable, size_text

MAX_LINES = 40
_MAX_FLAGGED = 20
SCRIPTS = ("base.js", "colours.js", "layout.js", "labels.js", "treemap.js", "layers.js", "tensors.js")


def html_page(summary: Summary, max_items: int = MAX_ITEMS) -> str:
    """A self-contained page of HTML, with `max_items` items one by one; the others are added up.

    Names come from the checkpoint, which may be hostile: they are escaped here, and the script only ever makes text of
    them. The policy in the page's head allows this one script and this one style sheet, by their digests, and nothing
    else; so even a mistake in that could neither run nor fetch anything.
    """
    contents = summary.contents
    style = _asset("style.css")
    script = "\n".join(_asset(name) for name in SCRIPTS)
    data = page_data(summary, max_items)
    left_out = data["left_out"]
    note = f"{many(left_out, 'smaller item')} of this checkpoint are added up by module." if left_out else ""
    return Template(_asset("page.html")).substitute(
        policy=f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        title=_text(contents.path.rstrip("/").rpartition("/")[2] or contents.path),
        path=_text(contents.path),
        format=_text(str(contents.format)),
        figures=_figures(summary),
        attention=_attention(summary.values) if summary.values is not None and summary.values.flagged else "",
        groups=_table("dtype", [(dtype, dtype, totals) for dtype, totals in summary.dtypes.items()])
        + _table("chain", [(chain_text(chain), " + ".join(chain), totals) for chain, totals in summary.chains.items()]),
        facts=_facts(summary),
        note=escape(note),
        source="the checkpoint's own metadata" + (" and its tensors" if summary.values is not None else ""),
        version=escape(__version__),
        style=style,
        data=_json(data),
        script=script,
    )


def _asset(name: str) -> str:
    return files("streamxf.tools.inspect.page").joinpath(name).read_text(encoding="utf-8")


def _text(text: str) -> str:
    return escape(printable(text))


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


def _json(data: object) -> str:
    """JSON for the inside of a script element, which a ``</script`` anywhere in it would end."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e")


def _figures(summary: Summary) -> str:
    """The tiles at the top."""
    total, contents = summary.total, summary.contents
    stored = total.stored_bytes + total.object_bytes
    saved = total.raw_bytes - total.stored_bytes
    less = f"{size_text(abs(saved))} {'less' if saved >= 0 else 'more'}" if total.raw_bytes else "no tensors"
    shown = [
        ("Stored", size_text(stored), many(len(contents.files), "file")),
        ("In memory", size_text(total.raw_bytes), f"{_count(total.elements)} elements"),
        ("Stored / in memory", ratio_text(total.ratio), less),
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


def _facts(summary: Summary) -> str:
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


def _count(number: int) -> str:
    for unit, scale in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= scale:
            return f"{number / scale:,.1f} {unit}"
    return str(number)


def _table(heading: str, rows: Iterable[tuple[str, str, ItemTotals]]) -> str:
    cells = "".join(
        f'<tr><th scope=row title="{_text(whole)}">{_text(label)}</th><td>{sums.items:,}</td>'
        f"<td class=wide>{size_text(sums.raw_bytes)}</td><td>{size_text(sums.stored_bytes + sums.object_bytes)}</td>"
        f"<td>{ratio_text(sums.ratio)}</td></tr>"
        for label, whole, sums in rows
    )
    heads = (
        f"<th scope=col>{heading}</th><th scope=col>items</th><th scope=col class=wide>in memory</th>"
        "<th scope=col>stored</th><th scope=col>ratio</th>"
    )
    return f"<div class=scroll><table><thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table></div>"


def _cut(lines: list[str]) -> list[str]:
    return lines if len(lines) <= MAX_LINES else [*lines[: MAX_LINES - 1], f"{len(lines) - MAX_LINES + 1:,} more"]


def _attention(values: TensorStatistics) -> str:
    """A card that lists tensors with NaN or infinities, and tensors of nothing but zeros."""
    count = len(values.flagged)
    lines = [_flagged(name, values.statistics[name]) for name in values.flagged[:_MAX_FLAGGED]]
    if count > _MAX_FLAGGED:
        lines.append(f"<li>{count - _MAX_FLAGGED:,} more</li>")
    return (
        f'<section class="card alert {"bad" if values.nan or values.inf else "odd"}" aria-labelledby="alert-title">'
        f'<h2 id="alert-title">{many(count, "tensor")} {"needs" if count == 1 else "need"} attention</h2>'
        f"<ul>{''.join(lines)}</ul></section>"
    )


def _flagged(name: str, statistics: Statistics | None) -> str:
    assert statistics is not None  # else nothing of it would be known
    counts = {"NaN": statistics.nan, "Inf": statistics.inf}
    flags = [f'<span class="flag bad">{count:,} {what}</span>' for what, count in counts.items() if count]
    flags.append(
        '<span class="flag odd">all zeros</span> '
        if statistics.all_zero
        else f"<span class=quiet>of {many(statistics.elements, 'element')}</span>"
    )
    return f"<li><code>{_text(name)}</code> {' '.join(flags)}</li>"
