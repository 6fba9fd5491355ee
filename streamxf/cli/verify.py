"""``streamxf verify``."""

from __future__ import annotations

from dataclasses import asdict

from streamxf.cli import options, show


def verify(
    path: str = options.PATH,
    *,
    access: options.Group,
    expect_save_id: list[str] | None = options.SAVE_IDS,
    out: show.Output,
) -> int:
    """Read every byte of a checkpoint or file, and report damage.

    A file that streamxf.open wrote is checked like a checkpoint. Of a torch.save file, the checksums of its records are
    compared; a .safetensors file has none, so only its header is checked. A Hugging Face folder is checked shard by
    shard. In any other folder, such as a Trainer's checkpoint or a run, each checkpoint and file is checked.

    Without keys, verify finds accidental damage, but not deliberate changes.

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
