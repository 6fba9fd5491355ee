"""Results on disk: ``RESULTS/NAME/TIME/`` with ``NAME.json``, ``NAME.md`` and PNG files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.harness import Settings
from benchmarks.plots import DOTS_PER_INCH
from benchmarks.result import Result, markdown
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
        "tables": [{"title": table.title, "rows": table.rows} for table in result.tables],
    }
    for name, figure in result.figures.items():
        figure.savefig(path / f"{name}.png", dpi=DOTS_PER_INCH)
    (path / f"{result.name}.md").write_text(markdown(result))
    # last: a folder without it is that of a run that was interrupted
    (path / f"{result.name}.json").write_text(json.dumps(content, indent=1, default=_plain) + "\n")
    return path


def newest(name: str, folder: Path) -> Path:
    """The folder of a benchmark's newest whole result that measured something.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    for path in sorted((folder / name).glob("*"), reverse=True):
        file = path / f"{name}.json"
        if file.exists() and not json.loads(file.read_text())["settings"]["smoke"]:
            return path
    raise FileNotFoundError(f"{folder} has no results of {name}; measure them with: make bench ARGS={name}")


def _plain(value: Any) -> Any:
    if isinstance(value, Spread):
        return value.to_dict()
    raise TypeError(f"a result's row holds a {type(value).__name__}, which JSON cannot")
