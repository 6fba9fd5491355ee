"""``streamxf rename``."""

from __future__ import annotations

from streamxf.cli import options
from streamxf.cli.show import Output
from streamxf.errors import ParameterError
from streamxf.wording import many


def rename(
    path: str = options.PATH,
    names: list[str] = options.argument("OLD=NEW...", "A name and the new one; one '*' in both stands for any text."),
    *,
    terms: options.Group,
    out: Output,
) -> int:
    """Rename items of a checkpoint, without touching its data.

    Only metadata is rewritten, in one step. 'module.*=*' removes a prefix, '*=module.*' adds one. A whole name counts
    before a pattern, the first pattern that fits before others.

    An encrypted checkpoint is opened with --key, given for each recipient that vouches for it; a signed one is signed
    again with --signer.

    Examples:
    streamxf rename /checkpoints/step-1000 'model.module.*=model.*'
    streamxf rename /checkpoints/step-1000 head.weight=lm_head.weight --key file:team.key
    """
    from streamxf.tools.rekey.rename import rename as change

    wanted: dict[str, str] = {}
    for pair in names:
        old, equals, new = pair.partition("=")
        if not equals or old in wanted:
            raise ParameterError(f"{pair!r:.80} is not OLD=NEW, or stands there twice")
        wanted[old] = new
    done = change(path, wanted, **terms)
    text = f"renamed: {many(len(done), 'item')}" if done else "nothing changed: the items have these names"
    return out.result({"path": path, "renamed": done}, text)
