"""``streamxf verify``, ``salvage`` and ``clean``."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from functools import partial

import streamxf
from streamxf.cli import options, ranks, show
from streamxf.cli.exits import FAILED, FINE, USAGE
from streamxf.errors import ParameterError, redacted


def verify(
    paths: list[str] = options.PATHS,
    *,
    access: options.Group,
    expect_save_id: list[str] | None = options.SAVE_IDS,
    out: show.Output,
) -> int:
    """Read every byte of checkpoints or files, and report damage.

    A file that streamxf.open wrote is checked like a checkpoint. Of a torch.save file, the checksums of its records are
    compared; a .safetensors file has none, so only its header is checked. A Hugging Face folder is checked shard by
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
    partial: bool = options.flag("Include tensors with damaged shards: these are zero."),
    rank: int | None = options.value("N", "Whose metadata to use, if each rank has its own.", min=0),
    merge_ranks: bool = options.flag("Confirm that all ranks' metadata files belong to one save."),
    without_metadata: bool = options.flag(
        "Find items in the data files if the metadata is unusable. You confirm that no data file is missing or was "
        "added."
    ),
    writer_id: list[str] | None = options.value(
        "ID",
        "With --without-metadata: the 32 digits in the names of the save's files, if there are files of several saves.",
    ),
    *,
    written: options.Group,
    access: options.Group,
    expect_save_id: list[str] | None = options.SAVE_IDS,
    out: show.Output,
) -> int:
    """Save the intact items of a damaged checkpoint as a new one, and list the lost ones.

    Each item is checked as in a load, so the new checkpoint contains only intact items. One or two of them are in
    memory at a time. The damaged checkpoint is read twice and not changed. The exit code is 1 if anything is lost,
    and 2 if all that is missing could only not be read: see why, and salvage again.

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
            path,
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
    The next save removes leftovers, too. If the checkpoint is incomplete, nothing is removed.

    While a save to this folder is under way, as its lock shows, all leftovers stay; where there are no locks, those
    younger than a day.

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
