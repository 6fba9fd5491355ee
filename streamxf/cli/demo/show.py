"""What the demonstration prints."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from streamxf.cli.demo.damage import Damage
from streamxf.cli.demo.proof import Proof
from streamxf.cli.timing import Timing
from streamxf.wording import many

MEBI, GIGA = 2**20, 1e9


def timings(console: Console, measured: dict[str, list[Timing]], runs: int) -> None:
    """The table of sizes and times."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("dtype", "writer"):
        table.add_column(heading, no_wrap=True)
    for heading in ("items", "raw\nMiB", "stored\nMiB", "ratio", "save\ns", "\nGB/s", "load\ns", "\nGB/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for dtype, rows in measured.items():
        for row in rows:
            style = "bold" if row is rows[-1] else ""
            table.add_row(dtype, row.side, *_figures(row), style=style, end_section=row is rows[-1])
    console.print(table)
    console.print(f"Medians of {many(runs, 'run')} of each writer in turn, after one to warm up.", markup=False)
    console.print("All of them sync to disk. GB/s counts raw bytes.", markup=False)


def _figures(row: Timing) -> list[str]:
    return [
        str(row.items),
        f"{row.raw / MEBI:.1f}",
        f"{row.stored / MEBI:.1f}",
        f"{row.stored / row.raw:.3f}",
        f"{row.save_seconds:.3f}",
        f"{row.raw / row.save_seconds / GIGA:.2f}",
        f"{row.load_seconds:.3f}",
        f"{row.raw / row.load_seconds / GIGA:.2f}",
    ]


def proof(console: Console, dtype: str, found: Proof) -> None:
    """How many tensors came back."""
    total = len(found.equal) + len(found.different)
    verdict(console, found.good, f"{dtype}: {len(found.equal)} of {total} tensors are equal bit for bit")
    if found.failure is not None:
        console.print(_plain(f"  the second process failed: {found.failure}"))
    elif found.different:
        console.print(_plain(f"  different: {', '.join(found.different[:5])}"))


def chain(console: Console, descriptors: list[str]) -> None:
    """The recorded descriptors, each on one line."""
    for descriptor in descriptors:
        console.print(_plain(f"  {descriptor}"), no_wrap=True, overflow="ellipsis")


def damage(console: Console, made: Damage) -> None:
    """The flipped bit and the error."""
    console.print(_plain(f"Bit {made.bit} of byte {made.byte:,} in {made.file}"), no_wrap=True, overflow="ellipsis")
    if made.error is None:
        verdict(console, False, "the load went through")
        return
    verdict(console, made.found, f"the load failed with {type(made.error).__name__}: {made.error.message}")
    for label, value in (
        ("file", Path(made.error.file or "").name),
        ("item", made.error.item),
        ("block", made.error.block),
    ):
        console.print(_plain(f"     {label:<5}  {value}"))


def heading(console: Console, text: str) -> None:
    """A line that opens a part."""
    console.print()
    console.print(Text(text, style="bold"))


def verdict(console: Console, good: bool, text: str) -> None:
    """A line that says whether something is as it should be."""
    line = Table.grid(padding=(0, 1, 0, 0))
    line.add_row(Text("  ok", style="green") if good else Text("FAIL", style="bold red"), _plain(text))
    console.print(line)


def _plain(text: str) -> Text:
    """Text that is printed as it is: rich would take brackets in an error message for markup."""
    return Text(text)
