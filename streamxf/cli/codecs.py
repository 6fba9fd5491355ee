"""``streamxf codecs``."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass
from typing import TYPE_CHECKING, Any

from streamxf.cli import show
from streamxf.cli.exits import FAILED, FINE, line_of
from streamxf.cli.options import JsonOption
from streamxf.wording import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamxf.codec import Codec

EXAMPLES = ("streamxf codecs",)


@dataclass(frozen=True)
class _Found:
    """A codec, or a kind of place for keys, and whether it can be used here.

    Attributes
    ----------
    packages : list of str
        Where it is from, with versions.
    problem : str or None
        Why it cannot be used.
    """

    name: str
    packages: list[str]
    problem: str | None

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        facts = asdict(self)
        facts["from"] = facts.pop("packages")
        return facts


@dataclass(frozen=True)
class _FoundCodec(_Found):
    """`name` is the one that chains take; version, role and parameters are None where the codec does not load.

    Attributes
    ----------
    descriptor_name : str
        The one in descriptors, and so in checkpoints.
    """

    descriptor_name: str
    version: int | None
    role: str | None
    parameters: dict[str, Any] | None


def codecs(json: JsonOption = False) -> int:
    """List the codecs and key providers that are installed, where they are from, and whether they load.

    Third parties' are imported for that, in this process.
    """
    from streamxf.keys.location import places
    from streamxf.registry import CodecRegistry

    registry = CodecRegistry()
    found = [_codec(registry, name) for name in registry.names()]
    keys = [_place(scheme) for scheme in places()]
    if json:
        show.as_json({"codecs": [each.facts() for each in found], "key_providers": [each.facts() for each in keys]})
    else:
        _show(found, keys)
    return FAILED if any(each.problem is not None for each in (*found, *keys)) else FINE


def _codec(registry: Any, name: str) -> _FoundCodec:
    from streamxf.registry import short_name

    cls, error = _loaded(lambda: registry.find(name))
    facts = short_name(name), registry.packages(name) or [_own()], error, name
    if cls is None:
        return _FoundCodec(*facts, None, None, None)
    return _FoundCodec(*facts, cls.version, cls.role, _parameters(cls))


def _place(scheme: str) -> _Found:
    from streamxf.keys.location import maker, packages

    _, error = _loaded(lambda: maker(scheme))
    return _Found(scheme, packages(scheme) or [_own()], error)


def _loaded(load: Callable[[], Any]) -> tuple[Any, str | None]:
    """What `load` returns, or why there is nothing."""
    try:
        return load(), None
    except (Exception, SystemExit) as error:  # whatever a foreign module does while it is imported
        return None, line_of(error)


def _parameters(cls: type[Codec]) -> dict[str, Any]:
    """The names that stand in the text form of a chain, with what they are by default."""
    from streamxf.codec import parameter_fields
    from streamxf.descriptor import ENCRYPT

    if cls.name == ENCRYPT:  # keys never stand in a text
        return {}
    return {field.name: None if field.default is MISSING else field.default for field in parameter_fields(cls)}


def _own() -> str:
    from streamxf.version import __version__

    return f"streamxf=={__version__}"


def _show(found: list[_FoundCodec], keys: list[_Found]) -> None:
    from rich.text import Text

    out = show.console()
    codecs = show.table("codec", "version", "role", "parameters", "from", right=["version"])
    for each in found:
        parameters = ", ".join(
            name if value is None else f"{name}={value}" for name, value in (each.parameters or {}).items()
        )
        cells = [each.name, "" if each.version is None else str(each.version), each.role or "", parameters]
        codecs.add_row(*(Text(printable(cell)) for cell in (*cells, ", ".join(each.packages))))
    out.print(codecs)
    places = show.table("keys from", "from")
    for place in keys:
        places.add_row(*(Text(printable(cell)) for cell in (f"{place.name}:", ", ".join(place.packages))))
    out.print(places)
    for one in (*found, *keys):
        if one.problem is not None:
            out.print(f"does not load: {printable(one.name)}: {one.problem}")
