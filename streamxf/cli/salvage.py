"""``streamxf salvage``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from streamxf.cli import options, show
from streamxf.cli.exits import FAILED, FINE
from streamxf.errors import ParameterError

EXAMPLES = (
    "streamxf salvage /checkpoints/step-1000 /checkpoints/step-1000-salvaged",
    "streamxf salvage damaged whole --without-metadata",
)


def salvage(
    path: options.Path,
    target: options.Target,
    partial: Annotated[
        bool, typer.Option("--partial", help="Include tensors of which only some shards are intact: the rest is zero.")
    ] = False,
    rank: Annotated[
        int | None,
        typer.Option("--rank", min=0, metavar="N", help="Whose metadata to use, where each rank has its own."),
    ] = None,
    merge_ranks: Annotated[
        bool,
        typer.Option(
            "--merge-ranks", help="Where each rank has metadata of its own: you know that all belong to one save."
        ),
    ] = False,
    without_metadata: Annotated[
        bool,
        typer.Option(
            "--without-metadata",
            help="Find items in the data files, if the metadata cannot be used. You then vouch that no data file is "
            "missing, and that none was added.",
        ),
    ] = False,
    writer_id: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            help="With --without-metadata: the 32 digits in the names of files that belong to the save, if there are "
            "files of several.",
        ),
    ] = None,
    *,
    written: options.Written,
    access: options.Access,
    expect_save_id: options.SaveIds = None,
    json: options.Json = False,
) -> int:
    """Save the intact items of a damaged checkpoint as a new one, and list what is lost.

    Each item is checked by itself, as in a load, so the new checkpoint holds what was saved. One or two items are in
    memory at a time. The damaged checkpoint is not changed, and is read twice. It exits with 1 if anything is lost.
    """
    from streamxf.tools.salvage.salvage import salvage_to

    if writer_id and not without_metadata:
        raise ParameterError(
            "--writer-id goes with --without-metadata; otherwise the metadata says which files belong to the save"
        )
    with show.progress("Salvaging", json) as bar:
        found, copy = salvage_to(
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
    if json:
        facts = {
            "path": path,
            "target": target,
            "loaded": found.loaded,
            "damaged": show.damages(found.damaged),
            "partial": found.partial,
            "unchecked": found.unchecked,
            "save_ids": list(dict.fromkeys(found.save_ids.values())),
            "written": None if copy is None else asdict(copy),
        }
        show.as_json(facts, show.budget_for(access["max_expansion"], path))
    else:
        show.report(str(found), not found.damaged)
        show.console().print(f"nothing was written to {target}" if copy is None else f"{target}: {copy}")
    return FAILED if found.damaged or copy is None else FINE
