"""The command ``python -m benchmarks.publish``: the newest results into docs/benchmarks/.

So no figure in the documentation is copied by hand.

Each benchmark gives ``NAME.md`` (a section that docs/benchmarks.md includes) and its figures; ``results.json`` has all
tables with every round's value, and ``machine.md`` says what they were measured on.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.result import Table, table_markdown
from benchmarks.run import NAMES
from benchmarks.store import RESULTS, newest

PUBLISHED = Path(__file__).parent.parent / "docs" / "benchmarks"

# A section is included in docs/benchmarks.md, one folder above the figures.
_FIGURE = re.compile(r"\]\((?=[a-z0-9_-]+\.png\))")


def publish(results: Path, target: Path) -> None:
    """Bring the newest result of each benchmark into `target`. What was published of those that were not run since
    stays.

    Raises
    ------
    FileNotFoundError
        If a benchmark has no result, and none was published.
    """
    published = target / "results.json"
    contents: dict[str, Any] = json.loads(published.read_text()) if published.exists() else {}
    sources: dict[str, Path] = {}
    for name in NAMES:
        try:
            path = newest(name, results)
        except FileNotFoundError:
            if name not in contents:
                raise
            continue
        content = json.loads((path / f"{name}.json").read_text())
        if name not in contents or content["machine"]["time"] > contents[name]["machine"]["time"]:
            sources[name], contents[name] = path, content
    contents = {name: contents[name] for name in NAMES}
    target.mkdir(parents=True, exist_ok=True)
    for name, path in sources.items():
        for picture in target.glob(f"{name}*.png"):
            picture.unlink()
        section = (path / f"{name}.md").read_text()
        (target / f"{name}.md").write_text(_FIGURE.sub(f"]({target.name}/", section))
        for picture in path.glob("*.png"):
            shutil.copy(picture, target)
    (target / "machine.md").write_text(_machine(contents))
    published.write_text(json.dumps(contents, indent=1) + "\n")


def _machine(contents: dict[str, Any]) -> str:
    machines = sorted({describe(content["machine"]) for content in contents.values()})
    packages = contents[NAMES[0]]["machine"]["packages"]
    versions = ", ".join(f"{name} {number}" for name, number in packages.items())
    runs = [
        {
            "benchmark": name,
            "measured": content["machine"]["time"],
            "commit": content["machine"]["commit"] or "unknown",
            "CPU": content["machine"].get("cpu_model_name", "unknown"),
            "rounds": content["settings"]["rounds"],
            "took, s": round(content["took_seconds"]),
            "load before": str(content["machine"].get("load_avg_1min", "unknown")),
        }
        for name, content in contents.items()
    ]
    lines = [*(f"{line}." for line in machines), "", f"Versions: {versions}.", "", *table_markdown(Table(runs))]
    return "\n".join(lines) + "\n"


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
