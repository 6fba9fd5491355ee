"""Results on disk: ``RESULTS/NAME/TIME/NAME.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Settings
from benchmarks.result import Result
from benchmarks.spread import Spread

RESULTS = Path(__file__).parent / "results"


def store(result: Result, settings: Settings, facts: dict[str, Any], folder: Path, seconds: float) -> Path:
    """Write one result into a new folder.

    Parameters
    ----------
    facts : dict
        The machine's, from before the benchmark.
    folder : Path
        Where results of all benchmarks are.
    seconds : float
        How long the benchmark took.

    Returns
    -------
    Path
        The result's own folder.
    """
    path = folder / result.name / facts["time"].replace(":", "").replace("+0000", "Z")
    path.mkdir(parents=True)
    asked = {"smoke": settings.smoke, "rounds": settings.rounds, "mib": settings.mib}
    content = {
        "name": result.name,
        "title": result.title,
        "took_seconds": round(seconds, 1),
        "settings": asked,
        "machine": facts,
        "note": result.note,
        "tables": [{"title": table.title, "digits": table.digits, "rows": table.rows} for table in result.tables],
    }
    (path / f"{result.name}.json").write_text(json.dumps(content, indent=1, default=_plain) + "\n")
    return path


def stored(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Each result of a benchmark that measured something, the oldest first."""
    for file in sorted((folder / name).glob(f"*/{name}.json")):
        content = json.loads(file.read_text())
        if not content["settings"]["smoke"]:
            yield content


def _plain(value: Any) -> Any:
    if isinstance(value, Spread):
        return value.to_dict()
    raise TypeError(f"a result's row holds a {type(value).__name__}, which JSON cannot")
