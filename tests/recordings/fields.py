"""The tables of docs/json.md, out of the schema."""

from __future__ import annotations

import json
from typing import Any

from tests.recordings.page import ROOT

SCHEMA = ROOT / "docs" / "json-schema.json"
PAGE = ROOT / "docs" / "json.md"


def tables() -> str:
    """Which fields commands and objects have."""
    definitions = json.loads(SCHEMA.read_text())["$defs"]
    del definitions["fields"]
    commands, failed = definitions.pop("commands"), definitions.pop("failed")
    parts = [
        "## Commands",
        _objects("command", {**_code(commands), "any of them, if it fails": failed}),
        "## Objects",
        _objects("object", _code(definitions)),
    ]
    return "\n\n".join(parts)


def _objects(heading: str, objects: dict[str, Any]) -> str:
    rows = []
    for name, each in objects.items():
        always = [field for field in each["required"] if field != "json_version"]
        rest = [field for field in each["propertyNames"]["enum"] if field not in each["required"]]
        rows.append([name, _names(always), _names(rest)])
    return _table([heading, "always has", "may have"], rows)


def _code(objects: dict[str, Any]) -> dict[str, Any]:
    return {f"`{name}`": each for name, each in objects.items()}


def _names(fields: list[str]) -> str:
    return ", ".join(f"`{field}`" for field in fields)


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
