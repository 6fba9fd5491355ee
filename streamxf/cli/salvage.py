"""``streamxf salvage``."""

from __future__ import annotations

from dataclasses import asdict

from streamxf.cli import options, show
from streamxf.cli.exits import FAILED
from streamxf.errors import ParameterError


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
    memory at a time. The damaged checkpoint is read twice and not changed. The exit code is 1 if anything is lost.

    Examples:
    streamxf salvage /checkpoints/step-1000 /checkpoints/step-1000-salvaged
    streamxf salvage damaged whole --without-metadata
    """
    from streamxf.tools.salvage.salvage import salvage

    if writer_id and not without_metadata:
        raise ParameterError(
            "--writer-id goes with --without-metadata; otherwise the metadata says which files belong to the save"
        )
    with out.progress("Salvaging") as bar:
        found, copy = salvage(
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
    code = out.report(
        lambda: {
            "path": path,
            "target": target,
            "loaded": found.loaded,
            "damaged": show.damages(found.damaged),
            "partial": found.partial,
            "unchecked": found.unchecked,
            "save_ids": list(dict.fromkeys(found.save_ids.values())),
            "written": None if copy is None else asdict(copy),
        },
        text,
        not found.damaged,
        access["max_expansion"],
        path,
    )
    return code if copy is not None else FAILED
