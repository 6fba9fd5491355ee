"""What ``streamxf inspect`` prints for people; statistics of tensors also for ``streamxf diff``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from streamxf.cli import show
from streamxf.cli.show import say
from streamxf.formats.contents import Format
from streamxf.reading import Item, TensorItem
from streamxf.tools.inspect.inspect import ItemTotals, Module, chain_text, memory_of, ratio_of, ratio_text, walk
from streamxf.wording import ACCESS, SALVAGE_DATA, many, printable, size_text

if TYPE_CHECKING:
    from streamxf.tools.inspect.inspect import PlainSummary, Summary, TensorStatistics
    from streamxf.tools.values.statistics import Histogram, Statistics

HEADINGS = ("zeros", "min", "max", "mean", "std")
BARS = 16  # and a mark at either end

_BLOCKS, _OUTSIDE = " ▁▂▃▄▅▆▇█", "…"
_PLAIN, _PLAIN_OUTSIDE = " .:-=+*#%", "~"
_LONG_INTEGER = 10**7
_BAD, _ODD, _GOOD = "bold red", "bold yellow", "bold green"
_SIZES = ("in memory", "stored", "ratio")
_NUMBERS = ("tensors", "items", *_SIZES)
_LISTED = 20  # of files, keys or notes; --json has all


def totals(summary: Summary) -> None:
    """What it is, its sizes, and tables of dtypes and chains."""
    total, contents = summary.total, summary.contents
    files = f"{many(len(contents.files), 'file')}, {size_text(sum(contents.files.values()))}"
    say(f"{printable(contents.path)}: {contents.format}, {files}", wrap=False)
    shards = [many(summary.shards, "shard")] if summary.shards > total.tensors else []
    say(", ".join([many(total.tensors, "tensor"), *shards, many(total.elements, "element")]))
    sizes = f"{size_text(total.raw_bytes)} in memory, {size_text(total.stored_bytes)} stored"
    say(f"{sizes}, ratio {ratio_text(total.ratio)}")
    if total.objects:
        stored = f": {size_text(total.object_bytes)} stored" if total.object_bytes else ""  # torch.save has one pickle
        say(f"{many(total.objects, 'non-tensor object')}{stored}")
    if summary.dtypes:
        _groups("dtype", "tensors", ((dtype, totals.tensors, totals) for dtype, totals in summary.dtypes.items()))
    if any(summary.chains):
        _groups("chain", "items", ((chain_text(chain), sums.items, sums) for chain, sums in summary.chains.items()))


def plain(file: PlainSummary) -> str:
    """What is in a file that streamxf.open wrote."""
    lines = [
        f"{printable(file.path)}: {Format.PLAIN}, 1 file, {size_text(file.file_bytes)}",
        f"{size_text(file.raw_bytes)} decoded, {size_text(file.file_bytes)} stored, ratio {ratio_text(file.ratio)}",
        f"{many(file.blocks, 'block')} of {size_text(file.block_size)} through {chain_text(file.chain)}",
    ]
    for label, found in (("key", file.key_ids), ("signed by", file.signers), ("note", file.notes)):
        lines += [f"{label:<11} {printable(text)}" for text in found]
    return "\n".join(lines)


def largest(summary: Summary, count: int) -> None:
    """The tensors with the most stored bytes, and statistics of them if there are any."""
    found, values = summary.largest(count), summary.values
    title = "largest tensors" if len(found) < summary.total.tensors else "tensors, the largest first"
    table = value_table(title, "dtype", "shape")
    if values is None:
        table = show.TextTable(title, "dtype", "shape", *_SIZES, right=_NUMBERS, spare=_SIZES[:1])
    for item in found:
        statistics, style = values.statistics[item.name] if values is not None else None, ""
        if values is not None and item.name in values.flagged:
            style = _ODD if statistics and statistics.all_zero else _BAD
        figures = _sizes(ItemTotals.of([item])) if values is None else value_cells(statistics)
        table.row(item.name, *_about(item), *figures, style=style)
    if found:
        table.print()


def modules(tree: Module, depth: int | None) -> None:
    """The tree, a line for each module."""
    headings = ("module", "tensors", "dtype", "shape", *_SIZES)
    table = show.TextTable(*headings, right=_NUMBERS, spare=("tensors", _SIZES[0]))
    for level, module in walk(tree, depth):
        about = ("", "") if module.item is None else _about(module.item)
        table.row(f"{'  ' * level}{module.name}", f"{module.totals.tensors:,}", *about, *_sizes(module.totals))
    table.print()


def about(summary: Summary) -> None:
    """Who wrote it, which keys open it, and what a reader should know."""
    contents = summary.contents
    packages = ", ".join(f"{name} {version}" for name, version in contents.packages.items())
    for label, found in (
        ("written by", [packages] if packages else []),
        ("save", contents.save_ids),
        ("key", contents.key_ids),
        ("signed by", contents.signers),
        ("metadata", [f"{name}: {value}" for name, value in contents.extra.items()]),
        ("note", summary.notes),
    ):
        for text in found[:_LISTED]:
            say(f"{label:<11} {printable(text)}")
        if len(found) > _LISTED:
            say(f"{label:<11} {len(found) - _LISTED:,} more")


def items(summary: Summary) -> None:
    """Every item in a line of its own; names come last, so that long ones need no folding."""
    values = summary.values
    numbers = (*_SIZES, "NaN", "Inf", *HEADINGS) if values is not None else _SIZES
    table = show.TextTable("dtype", "shape", *numbers, "name", right=numbers)
    for item in summary.contents.items.values():
        raw = size_text(memory_of(item)) if isinstance(item, TensorItem) else "-"
        stored, ratio = size_text(item.stored_bytes), ratio_text(ratio_of(item))
        found = values.statistics.get(item.name) if values is not None else None
        counts = (f"{found.nan:,}", f"{found.inf:,}") if found is not None else ("-", "-")
        more = (*counts, *cells(found)) if values is not None else ()
        table.row(*_about(item), raw, stored, ratio, *more, item.name)
    table.print_lines()


def _groups(heading: str, counted: str, rows: Iterable[tuple[str, int, ItemTotals]]) -> None:
    table = show.TextTable(heading, counted, *_SIZES, right=_NUMBERS)
    for name, number, totals in rows:
        table.row(name, f"{number:,}", *_sizes(totals))
    table.print()


def _sizes(totals: ItemTotals) -> tuple[str, str, str]:
    raw = size_text(totals.raw_bytes) if totals.tensors else "-"
    return raw, size_text(totals.stored_bytes + totals.object_bytes), ratio_text(totals.ratio)


def _about(item: Item) -> tuple[str, str]:
    """Dtype and shape."""
    if not isinstance(item, TensorItem):
        return "object", ""
    return item.dtype, " x ".join(map(str, item.shape)) or "scalar"


def flagged(values: TensorStatistics) -> None:
    """Tensors with NaN or infinities, of nothing but zeros, those damaged or not read; or that there is none."""
    found = {"NaN": values.nan, "infinities": values.inf, "only zeros": values.zeros, "damage": values.unreadable}
    found["NOT READ"] = values.unread
    counts = [f"{what} in {many(len(names), 'tensor')}" for what, names in found.items() if names]
    style = _BAD if values.nan or values.inf or values.unreadable or values.unread else _ODD if values.zeros else _GOOD
    say(", ".join(counts) or "no NaN, no infinities, no tensor of zeros", style)
    for name in values.flagged[:_LISTED]:
        statistics = values.statistics[name]
        assert statistics is not None  # else it is not flagged
        failed = {"NaN": statistics.nan, "Inf": statistics.inf}
        text = ", ".join(f"{count:,} {what}" for what, count in failed.items() if count)
        text = "all zeros" if statistics.all_zero else f"{text} of {many(statistics.elements, 'element')}"
        say(f"  {text}  {printable(name)}", _ODD if statistics.all_zero else _BAD, wrap=False)
    if len(values.flagged) > _LISTED:
        say(f"  {len(values.flagged) - _LISTED:,} more")
    if values.unreadable:
        say(SALVAGE_DATA)
    if values.unread:
        say(f"next: {ACCESS}")
    if values.unknown:
        say(f"{many(len(values.unknown), 'tensor')} skipped: the elements are not numbers, or only torch can read them")


def value_table(title: str, *more: str) -> show.TextTable:
    """A table for `value_cells`, a row for each tensor. `title` is the heading of names, `more` are other headings."""
    return show.TextTable(title, *more, *HEADINGS, "distribution", right=HEADINGS, spare=(*more, "mean"))


def value_cells(statistics: Statistics | None) -> tuple[str, ...]:
    return *cells(statistics), distribution(statistics.histogram if statistics else None)


def cells(statistics: Statistics | None) -> tuple[str, ...]:
    """The share of zeros, range, mean and standard deviation, in the order of `HEADINGS`."""
    if statistics is None:
        return ("-",) * len(HEADINGS)
    found = (statistics.min, statistics.max, statistics.mean, statistics.std)
    return share(statistics.zeros, statistics.elements), *map(number, found)


def number(value: int | float | None) -> str:
    """A number in a few characters."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) and abs(value) < _LONG_INTEGER else f"{value:.3g}"


def share(part: int, whole: int) -> str:
    """A share in percent: ``0 %`` means none at all, and ``100 %`` means all."""
    if not whole:
        return "-"
    percent = 100 * part / whole
    if part in (0, whole):
        return f"{percent:.0f} %"
    return f"{percent:.1f} %" if 0.05 <= percent < 99.95 else "<0.1 %" if percent < 50 else ">99.9 %"


def distribution(histogram: Histogram | None) -> str:
    """A histogram in one line, a character for each bar, and a mark at an end beyond which there are more numbers."""
    if histogram is None:
        return ""
    blocks, outside = (_BLOCKS, _OUTSIDE) if show.can_show(_BLOCKS + _OUTSIDE) else (_PLAIN, _PLAIN_OUTSIDE)
    counts = list(histogram.counts)
    while len(counts) > BARS:
        counts = [sum(counts[place : place + 2]) for place in range(0, len(counts), 2)]
    most, levels = max(counts) or 1, len(blocks) - 1
    drawn = "".join(blocks[-(-count * levels // most)] for count in counts)
    left, right = (outside if count else " " for count in (histogram.below, histogram.above))
    return f"{left}{drawn}{right}"
