"""The command ``python -m benchmarks.publish``: results into docs/benchmarks/.

So no figure in the documentation is copied by hand.

``results.json`` has the newest result of each benchmark on each machine, with every round's value. Everything else is
made from it: ``NAME.md`` for each benchmark (a section that docs/benchmarks.md includes, with all machines),
``machine.md`` with what was measured where and when, and the first page's chart.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.chart import write_chart
from benchmarks.differences import BYTES
from benchmarks.machine import describe, machine_name
from benchmarks.result import (
    GOAL,
    MEASURED,
    REACHED,
    RESULTS,
    Row,
    Spread,
    Table,
    stored,
    table_markdown,
    table_section,
)
from benchmarks.run import NAMES

PUBLISHED = Path(__file__).parent.parent / "docs" / "benchmarks"

Content = dict[str, Any]
"""What `store` wrote of one result."""
Published = dict[str, dict[str, Content]]
"""By machine, then by benchmark."""


def publish(results: Path, target: Path) -> None:
    """Bring all results that are newer than the published ones of the same machine into `target`. Whatever was
    published of other machines and of other benchmarks stays.

    Raises
    ------
    FileNotFoundError
        If a benchmark has no result, and none was published.
    """
    file = target / "results.json"
    published: Published = json.loads(file.read_text()) if file.exists() else {}
    for name in NAMES:
        for content in stored(name, results):
            add(published, content)
        if not any(name in contents for contents in published.values()):
            raise FileNotFoundError(f"{results} has no results of {name}; measure them with: make bench ARGS={name}")
    target.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (target / f"{name}.md").write_text(section(name, published))
    (target / "machine.md").write_text(overview(published))
    if CHART in NAMES:
        draw_charts(published, target.parent / "images")
    file.write_text(json.dumps(published, indent=1) + "\n")


def add(published: Published, content: Content) -> None:
    """Put a result in the place of an older one of the same benchmark on the same machine."""
    of_machine = published.setdefault(machine_name(content["machine"]), {})
    older = of_machine.get(content["name"])
    if older is None or content["machine"]["time"] > older["machine"]["time"]:
        of_machine[content["name"]] = content


# -- sections --------------------------------------------------------------------------------------------------------


def section(name: str, published: Published) -> str:
    """One benchmark as Markdown: goals with the machines side by side, then each machine's tables, the newest first."""
    runs = {machine: contents[name] for machine, contents in published.items() if name in contents}
    runs = dict(sorted(runs.items(), key=lambda run: run[1]["machine"]["time"], reverse=True))
    notes = [content["note"] for content in runs.values()]
    lines = [f"## {next(iter(runs.values()))['title']}", ""]
    if len(set(notes)) == 1:
        lines += [notes[0], ""]
    if goals := _goals(runs):
        lines += table_section(Table(goals, "Goals"), "###")
    for machine, content in runs.items():
        note = [] if len(set(notes)) == 1 else [content["note"], ""]
        facts = content["machine"]
        origin = f"Measured {facts['time'][:10]} at commit {facts['commit'] or 'unknown'}."
        lines += [f"### {machine}", "", *note, origin, ""]
        for table in _tables(content):
            if not _has_goals(table):
                lines += table_section(table, "####")
    return "\n".join(lines).rstrip() + "\n"


def _tables(content: Content) -> Iterator[Table]:
    for table in content["tables"]:
        rows = [{column: _value(value) for column, value in row.items()} for row in table["rows"]]
        yield Table(rows, table["title"], table["digits"])


def _value(value: Any) -> Any:
    return Spread.of(value["values"]) if isinstance(value, dict) else value


def _has_goals(table: Table) -> bool:
    return MEASURED in table.rows[0]


def _goals(runs: Mapping[str, Content]) -> list[Row]:
    """A row for each goal of any machine, with what each of them measured."""
    rows: dict[tuple[str, ...], Row] = {}
    for machine, content in runs.items():
        for table in _tables(content):
            for row in table.rows if _has_goals(table) else ():
                goal = {column: row[column] for column in ("what", "against", GOAL)}
                merged = rows.setdefault(tuple(goal.values()), {**goal, **dict.fromkeys(runs, "")})
                at = f", {row['at']}" if row.get("at") else ""
                missed = "" if row[REACHED] == "yes" else ", **missed**"
                merged[machine] = f"{row[MEASURED].text(table.digits)}{at}{missed}"
    return list(rows.values())


def overview(published: Published) -> str:
    """The machines, the versions on each, and what was measured when."""
    lines = []
    runs: list[Row] = []
    for machine, contents in published.items():
        newest = max((content["machine"] for content in contents.values()), key=lambda facts: facts["time"])
        versions = ", ".join(f"{name} {number}" for name, number in newest["packages"].items())
        lines += [f"**{describe(newest)}.** Versions: {versions}.", ""]
        runs += [
            {
                "benchmark": name,
                "machine": machine,
                "measured": contents[name]["machine"]["time"],
                "commit": contents[name]["machine"]["commit"] or "unknown",
                "rounds": contents[name]["settings"]["rounds"],
                "took, s": round(contents[name]["took_seconds"]),
                "load before": str(contents[name]["machine"].get("load_avg_1min", "unknown")),
            }
            for name in NAMES
            if name in contents
        ]
    return "\n".join([*lines, *table_markdown(Table(runs))]) + "\n"


CHART = "save_load"
_STEPS = {"differences": "streamxf"}
_PANELS = {"save, seconds": "save, s", "load, seconds": "load, s", "size": "size"}
_SIDES = {
    "stock DCP": "stock DCP",
    "stock DCP, ZStandard": "stock DCP, zstd",
    "safetensors": "safetensors",
    "streamxf, FloatZip": "streamxf",
    "streamxf, FloatZip + Checksum + Encrypt": "streamxf, encrypted",
}


def draw_charts(published: Published, images: Path) -> None:
    """From the newest results: ``compared``, times and sizes beside those of others, and ``differences``, the bytes of
    a step; each as ``-light.svg`` and ``-dark.svg``.
    """
    rows = {row["side"]: row for row in _newest(published, CHART, "bf16")}
    for row in rows.values():
        row["size"] = Spread.of([row["size"]])
    found = {
        heading: {label: rows[side][column] for side, label in _SIDES.items() if side in rows}
        for heading, column in _PANELS.items()
    }
    steps: dict[str, dict[str, Spread]] = {}
    for row in _newest(published, "differences", BYTES):
        sides = {_STEPS.get(side, side): float(row[side]) for side in row if side != "changed" and "=" not in side}
        in_order = sorted(sides.items(), key=lambda each: -each[1])
        steps[f"{row['changed']} changed"] = {side: Spread.of([part]) for side, part in in_order}
    images.mkdir(exist_ok=True)
    ours = {label for label in (*_SIDES.values(), *_STEPS.values()) if "streamxf" in label}
    for ground in ("light", "dark"):
        write_chart(images / f"compared-{ground}.svg", found, ours, dark=ground == "dark")
        write_chart(images / f"differences-{ground}.svg", steps, ours, dark=ground == "dark", digits=4)


def _newest(published: Published, name: str, title: str) -> Sequence[Row]:
    """The rows of a table of a benchmark's newest result."""
    runs = [contents[name] for contents in published.values() if name in contents]
    newest = max(runs, key=lambda content: str(content["machine"]["time"]))
    return next(table.rows for table in _tables(newest) if table.title == title)


def main(arguments: list[str] | None = None) -> int:
    """Publish, or say which result is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.publish", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the results are (default: %(default)s)")
    parser.add_argument("--target", type=Path, default=PUBLISHED, help="where they go (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        publish(options.results, options.target)
    except FileNotFoundError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
