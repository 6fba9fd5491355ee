"""``streamxf verify``."""

from __future__ import annotations

from dataclasses import asdict

from streamxf.cli import options, show


def verify(
    path: str = options.PATH,
    *,
    access: options.Access,
    expect_save_id: list[str] | None = options.SAVE_IDS,
    out: show.Output,
) -> int:
    """Read every byte of a checkpoint or file, and say what is damaged.

    A file that streamxf.open wrote is checked as a checkpoint is. Of a torch.save file the checksums of its records are
    compared; a .safetensors file has none, so only its header is checked. A Hugging Face folder is checked shard by
    shard, and what else a folder holds, such as a Trainer's checkpoint or a run, each part as what it is.

    Without keys everything is checked that needs none: accidents are found, deliberate changes are not.

    Examples:
    streamxf verify /checkpoints/step-1000 --key file:/run/secrets/checkpoint.key
    streamxf verify weights.pt.sxf
    """
    from streamxf.tools.verify.verify import verify as check

    with out.progress("Verifying") as bar:
        report = check(path, **access, expect_save_id=expect_save_id, progress=bar)
    return out.report(
        lambda: {"path": path, "ok": report.ok, **asdict(report), "damaged": show.damages(report.damaged)},
        str(report),
        report.ok,
        access["max_expansion"],
        path,
    )
