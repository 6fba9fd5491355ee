"""docs/json-schema.json, and a check of JSON by as much of JSON Schema as it uses."""

import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[2] / "docs" / "json-schema.json"
SCHEMA: dict[str, Any] = json.loads(PATH.read_text())

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_KNOWN = {
    *("$ref", "$schema", "$defs", "title", "description", "type", "enum", "const", "minimum", "anyOf"),
    *("properties", "required", "propertyNames", "additionalProperties", "items"),
}


def check(value: Any, schema: dict[str, Any], place: str = "$") -> None:
    """Raise AssertionError where a value is not as a schema says; raises for keywords that are not known here, too."""
    assert schema.keys() <= _KNOWN, (place, schema.keys() - _KNOWN)
    if "$ref" in schema:
        check(value, resolved(schema["$ref"]), place)
    if "anyOf" in schema:
        assert any(_fits(value, each, place) for each in schema["anyOf"]), (place, value)
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(_is(value, kind) for kind in kinds), f"{place}: {value!r} is none of {kinds}"
    assert "const" not in schema or value == schema["const"], place
    assert "enum" not in schema or value in schema["enum"], f"{place}: {value!r}"
    if "minimum" in schema and value is not None:
        assert value >= schema["minimum"], place
    if isinstance(value, list):
        for number, each in enumerate(value):
            check(each, schema.get("items", {}), f"{place}[{number}]")
    if isinstance(value, dict):
        missing = set(schema.get("required", ())) - value.keys()
        assert not missing, f"{place} lacks {missing}"
        for name, each in value.items():
            check(name, schema.get("propertyNames", {}), f"{place}: the name {name!r}")
            default = schema.get("additionalProperties", {})
            check(each, schema.get("properties", {}).get(name, default), f"{place}.{name}")


def resolved(reference: str) -> dict[str, Any]:
    """What ``#/$defs/...`` leads to."""
    found: Any = SCHEMA
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found  # type: ignore[no-any-return]


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and not (isinstance(value, bool) and kind != "boolean")


def _fits(value: Any, schema: dict[str, Any], place: str) -> bool:
    try:
        check(value, schema, place)
    except AssertionError:
        return False
    return True
