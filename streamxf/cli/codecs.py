"""``streamxf codecs``."""

from __future__ import annotations

from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from streamxf.cli import show
from streamxf.cli.exits import FAILED, FINE, line_of
from streamxf.version import __version__
from streamxf.wording import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamxf.registry import CodecRegistry


def codecs(*, out: show.Output) -> int:
    """List the codecs and key providers that are installed, the packages that they come from, and whether they load.

    Loading imports the packages of third parties in this process. The column "runs" says whether FloatZip uses its
    compiled kernel, or NumPy, which is slower with the same results.

    Examples:
    streamxf codecs
    """
    from streamxf.keys import location
    from streamxf.registry import CodecRegistry

    registry = CodecRegistry()
    found = [_codec(registry, name) for name in registry.names()]
    keys = [
        {"name": scheme, "from": _from(location.packages(scheme)), "problem": _loaded(location.maker, scheme)[1]}
        for scheme in location.places()
    ]
    if out.json:
        show.as_json({"codecs": found, "key_providers": keys})
    else:
        _print(found, keys)
    return FAILED if any(each["problem"] is not None for each in (*found, *keys)) else FINE


def _codec(registry: CodecRegistry, name: str) -> dict[str, Any]:
    """For JSON; version, role, implementation and parameters are None where the codec does not load."""
    from streamxf.codec import parameter_fields
    from streamxf.descriptor import ENCRYPT
    from streamxf.registry import short_name

    cls, problem = _loaded(registry.find, name)
    parameters = parameter_fields(cls) if cls and name != ENCRYPT else ()  # of Encrypt none: a chain's text has no keys
    return {
        "name": short_name(name),
        "problem": problem,
        "descriptor_name": name,
        "version": cls and cls.version,
        "role": cls and cls.role,
        "implementation": cls and cls.implementation(),
        "parameters": cls and {each.name: None if each.default is MISSING else each.default for each in parameters},
        "from": _from(registry.packages(name)),
    }


def _loaded(load: Callable[[str], Any], name: str) -> tuple[Any, str | None]:
    """What `load` returns, or why there is nothing."""
    try:
        return load(name), None
    except (Exception, SystemExit) as error:  # whatever a third party's module does while it is imported
        return None, line_of(error)


def _from(packages: Sequence[str]) -> list[str]:
    return [*packages] or [f"streamxf=={__version__}"]


def _print(found: list[dict[str, Any]], keys: list[dict[str, Any]]) -> None:
    headings = ("codec", "version", "role", "runs", "parameters", "from")
    codecs = show.TextTable(*headings, right=["version"], fold=["parameters", "from"])
    for each in found:
        known = (each["parameters"] or {}).items()
        parameters = (name if value is None else f"{name}={value}" for name, value in known)
        facts = (str(each[name] or "") for name in ("name", "version", "role", "implementation"))
        codecs.row(*facts, ", ".join(parameters), ", ".join(each["from"]))
    places = show.TextTable("keys from", "from")
    for each in keys:
        places.row(f"{each['name']}:", ", ".join(each["from"]))
    codecs.print()
    places.print()
    for each in (*found, *keys):
        if each["problem"] is not None:
            show.say(f"does not load: {printable(each['name'])}: {each['problem']}")
