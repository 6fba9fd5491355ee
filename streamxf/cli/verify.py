"""``streamxf verify``."""

from __future__ import annotations

from streamxf.cli import facts, show
from streamxf.cli.exits import FAILED, FINE
from streamxf.cli.keys import keys_at
from streamxf.cli.options import (
    JsonOption,
    KeyOption,
    PathArgument,
    RequireOption,
    SaveIdOption,
    TrustOption,
    UnsignedOption,
)

EXAMPLES = (
    "streamxf verify /checkpoints/step-1000 --key file:/run/secrets/checkpoint.key",
    "streamxf verify weights.pt.sxf",
)


def verify(
    path: PathArgument,
    key: KeyOption = None,
    trust: TrustOption = None,
    allow_unsigned: UnsignedOption = False,
    require: RequireOption = None,
    expect_save_id: SaveIdOption = None,
    json: JsonOption = False,
) -> int:
    """Read every byte of a checkpoint or file, and say what is damaged.

    A file that streamxf.open wrote is checked as a checkpoint is. Of a torch.save file the checksums of its records are
    compared; a .safetensors file has none, so only its header is checked. A folder of Hugging Face is checked shard by
    shard.

    Without keys everything is checked that needs none; accidents are found, deliberate changes are not.
    """
    from streamxf.tools.verify.verify import verify as check

    keys, trusted = keys_at(key), keys_at(trust)
    with show.progress("Verifying", json) as bar:
        report = check(
            path,
            keys,
            trust=trusted,
            allow_unsigned=allow_unsigned,
            require=require,
            expect_save_id=expect_save_id,
            progress=bar,
        )
    if json:
        show.as_json({"path": path, **facts.of_verified(report)})
    else:
        show.report(str(report), report.ok, path)
    return FINE if report.ok else FAILED
