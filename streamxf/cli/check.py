"""``streamxf verify``, ``salvage`` and ``clean``; ``codecs``, what is installed, and ``check``, what a place can do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import streamxf
from streamxf.cli import options, ranks, show
from streamxf.cli.exits import FAILED, FINE, LINE, USAGE, line_of
from streamxf.errors import ParameterError, redacted
from streamxf.version import __version__
from streamxf.wording import printable

if TYPE_CHECKING:
    from streamxf.codec import CodecRegistry
    from streamxf.tools.check import PlaceReport


def verify(
    paths: list[str] = options.PATHS,
    *,
    access: options.Group,
    expect_save_id: list[str] | None = options.SAVE_IDS,
    out: show.Output,
) -> int:
    """Read every byte of checkpoints or files, and report damage.

    A file that streamxf.open wrote is checked like a checkpoint. In a torch.save file, the checksums of the records are
    checked; a .safetensors file has none, so only its header is checked. A Hugging Face folder is checked shard by
    shard. In any other folder, such as a Trainer's checkpoint or a run, each checkpoint and file is checked.

    Without keys, verify finds accidental damage, but not deliberate changes.

    Exit codes: 0 intact; 1 damaged; 2 no damage was found, but something could not be read, or the command could not
    start.

    Examples:
    streamxf verify /checkpoints/step-1000 --key file:/run/secrets/checkpoint.key
    streamxf verify weights.pt.sxf
    streamxf verify run-7/step-* run-8/step-*
    torchrun --nproc-per-node 8 -m streamxf verify /checkpoints/step-1000
    """
    with ranks.executor() as executor, out.progress("Verifying") as bar:
        report = streamxf.verify(paths, **access, expect_save_id=expect_save_id, progress=bar, executor=executor)
    facts = {"paths": [*map(redacted, paths)], "ok": report.ok, **asdict(report)}
    facts |= {"damaged": show.damages(report.damaged), "unread": show.damages(report.unread)}
    code = out.result(facts, str(report), report.ok, access["max_expansion"], *paths)
    return USAGE if report.unread and not report.damaged else code


def salvage(
    path: str = options.PATH,
    target: str = options.TARGET,
    partial: bool = options.flag("Include tensors with damaged shards, filled with zeros."),
    rank: int | None = options.value("N", "Rank whose metadata to use, if each rank has its own.", min=0),
    merge_ranks: bool = options.flag("Confirm that all ranks' metadata files belong to one save."),
    without_metadata: bool = options.flag(
        "Find items in the data files if the metadata is unusable. You confirm that no data file is missing or was "
        "added."
    ),
    writer_id: list[str] | None = options.value(
        "ID",
        "With --without-metadata: the 32 digits in the names of the save's files, if there are files of several saves.",
    ),
    fresh: bool = options.flag("Treat apparent damage as damage, even on a mount that may show stale contents."),
    *,
    written: options.Group,
    access: options.Group,
    expect_save_id: list[str] | None = options.SAVE_IDS,
    out: show.Output,
) -> int:
    """Save the intact items of a damaged checkpoint as a new one, and list the lost ones.

    Each item is checked as in a load, so the new checkpoint contains only intact items. One or two of them are in
    memory at a time. The damaged checkpoint is read twice and not changed. The exit code is 1 if anything is lost,
    and 2 if nothing is, but something could not be read: see why, and salvage again, or see --fresh.

    Examples:
    streamxf salvage /checkpoints/step-1000 /checkpoints/step-1000-salvaged
    streamxf salvage damaged whole --without-metadata
    """
    if writer_id and not without_metadata:
        raise ParameterError(
            "--writer-id goes with --without-metadata; otherwise the metadata says which files belong to the save"
        )
    with out.progress("Salvaging") as bar:
        found, copy = streamxf.salvage(
            streamxf.open_storage(path, abilities={"fresh": True}) if fresh else path,
            target,
            **written,
            **access,
            expect_save_id=expect_save_id,
            partial=partial,
            rank=rank,
            merge_ranks=merge_ranks,
            without_metadata=writer_id or without_metadata,
            progress=bar,
        )
    text = f"{found}\n" + (f"nothing was written to {target}" if copy is None else f"{target}: {copy}")
    facts = {
        "path": path,
        "target": target,
        **{name: getattr(found, name) for name in ("loaded", "partial", "unchecked")},
        "damaged": show.damages(found.damaged),
        "unread": show.damages(found.unread),
        "save_ids": list(dict.fromkeys(found.save_ids.values())),
        "written": None if copy is None else asdict(copy),
    }
    code = out.result(facts, text, not (found.damaged or found.unread), access["max_expansion"], path)
    return USAGE if found.unread and not found.damaged else code if copy is not None else FAILED


def clean(
    path: str = options.PATH,
    dry_run: bool = options.DRY_RUN,
    min_age: float | None = options.value(
        "TIME",
        "Minimum age of a leftover: 90s, 30m, 2h, 1d. By default 0 on local disks, and 1d in object stores and network "
        "file systems.",
        parser=options.seconds,
    ),
    yes: bool = options.YES,
    *,
    protection: options.Group,
    out: show.Output,
) -> int:
    """Remove leftovers of failed and killed saves from a checkpoint's folder.

    It lists these files, and asks first. The checkpoint's own files stay, and so do files that streamxf did not write.
    The next save also removes leftovers. If the checkpoint is incomplete, nothing is removed.

    While a lock shows that a save to this folder is under way, all leftovers stay; where there are no locks, those
    younger than a day stay.

    Examples:
    streamxf clean /checkpoints/step-1000 --dry-run
    streamxf clean /checkpoints/step-1000 --min-age 2h --yes
    """
    remove = partial(streamxf.clean, path, **protection, min_age=min_age)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what cannot be removed is in the report
        report = remove(dry_run=not yes or dry_run)
        asks = out.asks(dry_run, yes)  # nobody is asked about what is no checkpoint
        if asks and (found := len(report.removed) + len(report.uploads)):
            if not out.confirmed(str(report), found):
                return FINE
            report = remove()
    something = report.removed or report.uploads or report.failed or report.kept or report.recent
    out.result({"path": path, **asdict(report)}, str(report) if something else "there is nothing to remove")
    return FAILED if report.failed else FINE


def codecs(*, out: show.Output) -> int:
    """List the installed codecs and key providers, the packages that they come from, and whether they load.

    Loading imports third-party packages in this process. The column "runs" says whether FloatZip uses its compiled
    kernel, or NumPy, which is slower with the same results.

    Examples:
    streamxf codecs
    """
    from streamxf.codec import CodecRegistry
    from streamxf.keys import find_provider, key_schemes

    registry = CodecRegistry()
    found = [_codec(registry, name) for name in registry.names()]
    keys = [
        {"name": scheme, "from": _from(packages), "problem": _loaded(find_provider, scheme)[1]}
        for scheme, packages in key_schemes().items()
    ]
    if out.json:
        show.as_json({"codecs": found, "key_providers": keys})
    else:
        _print_codecs(found, keys)
    return FAILED if any(each["problem"] is not None for each in (*found, *keys)) else FINE


def _codec(registry: CodecRegistry, name: str) -> dict[str, Any]:
    """For JSON; version, role, implementation and parameters are None where the codec does not load."""
    cls, problem = _loaded(registry.find, name)
    shows = cls and cls is not streamxf.Encrypt  # which has none in a chain's text: there are no keys there
    parameters = cls.parameter_fields() if shows else ()
    return {
        "name": registry.short_name(name),
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
        "PATH", "The same place through another mount, or the URL of what is mounted.", callback=options.existing
    ),
    look: bool = options.flag("Show only what is known about the place; try and write nothing."),
    *,
    out: show.Output,
) -> int:
    """Show what a place for checkpoints can do, and what streamxf does if it can do less than a disk.

    It tries this in a new folder there, streamxf-check-..., of up to 64 MiB, and removes the folder; remove one that a
    killed check, or an interrupted one on FUSE, has left. Only --second, which may take some minutes, shows whether
    writes are stored when they return, what reads see and whom locks keep out. Both paths must be independent: two
    mounts, or a mount and the URL of what is mounted.

    The exit code is 1 if the place lacks what streamxf needs, or does less than it is known for. The last lines then
    say what to tell streamxf.

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
        show.say(f"--second does not tell of {names}: it may be late, or read-only. Give the URL of what is mounted")


def _word(value: bool | str | None) -> str:
    return value if isinstance(value, str) else "unknown" if value is None else "yes" if value else "no"


def _said(found: PlaceReport, names: list[str]) -> str:
    late = ["fresh"] * (found.seen.get("fresh") is False)
    return f"abilities={ {name: found.seen[name] for name in (*names, *late)} }"
