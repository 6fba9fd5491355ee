"""``streamxf codecs`` and ``check``: what is installed, and what a place for checkpoints can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from streamxf.cli import options, show
from streamxf.cli.exits import FAILED, FINE, LINE, line_of
from streamxf.version import __version__
from streamxf.wording import printable

if TYPE_CHECKING:
    from streamxf.registry import CodecRegistry
    from streamxf.tools.check import PlaceReport


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
        _print_codecs(found, keys)
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


def _print_codecs(found: list[dict[str, Any]], keys: list[dict[str, Any]]) -> None:
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


def check(
    place: str = options.argument("PLACE", "Folder or URL where checkpoints are kept.", callback=options.existing),
    second: str | None = options.value(
        "PATH", "The same place by another mount, or by the URL of what is mounted.", callback=options.existing
    ),
    look: bool = options.flag("Show what is known of the place; try nothing, and write nothing."),
    *,
    out: show.Output,
) -> int:
    """Show what a place for checkpoints can do, and what streamxf does where it can do less than a disk.

    It tries that in a new folder there, streamxf-check-..., of up to 64 MiB, and removes it; remove one that a killed
    check, or an interrupted one on FUSE, has left. Whether writes are stored when they return, what reads show and whom
    locks keep out shows only with --second, which may take some minutes. Both must lead there by themselves: two
    mounts, or a mount and the URL of what is mounted.

    The exit code is 1 if the place lacks what streamxf needs, or does less than it is known for. The last lines have
    what to tell streamxf then.

    Examples:
    streamxf check /mnt/checkpoints
    streamxf check /mnt/bucket/runs --second s3://bucket/runs
    """
    from streamxf.places import open_storage
    from streamxf.tools.check import check_place

    found = check_place(open_storage(place), None if second is None else open_storage(second), look=look)
    if out.json:
        show.as_json(_as_dict(found))
    else:
        _print_place(found)
    return FINE if found.ok else FAILED


def _as_dict(found: PlaceReport) -> dict[str, Any]:
    kind, source = (found.mount.kind, found.mount.source) if found.mount else ("", "")
    mount = {"mount_type": kind or None, "mount_source": source or None}
    facts = {"path": found.path, **mount, "ok": found.ok, "problem": found.problem}
    return {**facts, "known": vars(found.known), "seen": found.seen, "consequences": found.consequences}


def _print_place(found: PlaceReport) -> None:
    mount = found.mount
    said = f"{found.path}{f': {mount.kind}, mounted from {mount.source}' if mount and mount.kind else ''}"
    show.say(printable(said, LINE))
    table = show.TextTable("ability", "known", "seen", "so", fold=["so"])
    for name, known in vars(found.known).items():
        seen = _word(found.seen[name]) if name in found.seen else ""
        table.row(name, _word(known), seen, found.consequences.get(name, ""), style="red" * (name in found.weaker))
    table.print()
    if found.problem is not None:
        show.verdict(f"this is no place for checkpoints: {found.problem}", good=False)
    elif found.weaker:
        show.verdict(f"it does less than it is known for. Tell streamxf: {_said(found, found.weaker)}", good=False)
    elif found.stronger:
        show.say(f"if it does that on every machine, tell streamxf: {_said(found, found.stronger)}")
    if names := ", ".join(name for name, value in found.seen.items() if value is None):
        show.say(
            f"--second does not tell of {names}: it may be late itself, or only read. Give the URL of what is mounted"
        )


def _word(value: bool | str | None) -> str:
    return value if isinstance(value, str) else "unknown" if value is None else "yes" if value else "no"


def _said(found: PlaceReport, names: list[str]) -> str:
    late = ["fresh"] * (found.seen.get("fresh") is False)
    return f"abilities={ {name: found.seen[name] for name in (*names, *late)} }"
