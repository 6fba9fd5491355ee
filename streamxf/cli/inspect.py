"""``streamxf inspect``."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import typer

from streamxf.buffers import write_all
from streamxf.cli import options, show
from streamxf.cli.exits import FAILED, FINE
from streamxf.errors import UnsupportedError
from streamxf.format.items import TensorItem
from streamxf.storage.files import open_regular
from streamxf.storage.opening import open_storage

if TYPE_CHECKING:
    from streamxf.tools.inspect.inspect import PlainSummary
    from streamxf.tools.inspect.tree import Module


_PAGE = b"<!doctype html>"
_FAILURES = ("nan", "inf", "zeros")


def _chosen(text: str | None) -> str | None:
    """Check what ``--fail-on`` names."""
    if text is not None:
        for word in text.split(","):
            if word not in _FAILURES:
                raise typer.BadParameter(f"{word!r:.40} is unknown; choose from {', '.join(_FAILURES)}")
    return text


def inspect(
    path: str = options.PATH,
    tree: bool = options.flag("Group by module; equal layers share a line."),
    depth: int | None = options.value("N", "With --tree, the number of levels of modules.", min=1),
    top: int = options.value("N", "How many of the largest tensors to list.", 10, min=0),
    items: bool = options.flag("List every item, in the checkpoint's own order."),
    html: str | None = options.value("FILE", "Write an HTML page: a treemap of sizes, and the ratio layer by layer."),
    values: bool = options.flag(
        "Also read all tensors, and show NaN, infinities, zeros, range, mean, standard deviation and distribution."
    ),
    fail_on: str | None = options.value(
        "WHAT",
        "Exit with 1 if a tensor contains NaN (nan), infinities (inf) or only zeros (zeros); separate several with "
        "commas. Implies --values.",
        callback=_chosen,
    ),
    *,
    access: options.Group,
    out: show.Output,
) -> int:
    """Show the contents of a checkpoint: chains, items, sizes, ratios, and who wrote it.

    PATH is a checkpoint of streamxf or of stock DCP, a .safetensors or torch.save file, a Hugging Face folder, or a
    file that streamxf.open wrote. Only metadata is read, and no keys are needed. With --values, all tensors are read,
    too.

    The ratio is stored bytes divided by bytes in memory, of tensors.

    Exit codes: 0 success; 1 damaged, or --fail-on found something; 2 it could not start.

    Examples:
    streamxf inspect /checkpoints/step-1000
    streamxf inspect model.safetensors --tree --depth 3
    streamxf inspect /checkpoints/step-1000 --html step-1000.html
    streamxf inspect /checkpoints/step-1000 --fail-on nan,inf
    """
    from streamxf.cli import figures
    from streamxf.tools.inspect.inspect import inspect as look
    from streamxf.tools.inspect.tree import tree_of

    if html is not None and os.path.isfile(html) and os.path.getsize(html):
        with open_regular(html) as old:
            if old.read(len(_PAGE)) != _PAGE:
                raise FileExistsError(17, "the file exists and is not an HTML page; it was not replaced", html)
    values = values or fail_on is not None
    try:
        with out.progress("Counting values") if values else nullcontext() as bar:
            summary = look(path, **access, values=values, progress=bar)
    except UnsupportedError:
        plain = _plain(path, access)
        if plain is None or html is not None or values:  # a stream of bytes has no page, and no values
            raise
        return out.result(plain.as_dict(), figures.plain(plain))
    found = summary.values
    failed = found is not None and fail_on is not None and any(getattr(found, what) for what in fail_on.split(","))
    module = tree_of(summary.contents.items.values()) if tree else None
    if html is not None:
        from streamxf.tools.inspect.page.page import html_page

        with open_storage(html).replacing() as draft:
            write_all(draft, memoryview(html_page(summary).encode()))
    if out.json:
        more = {} if module is None else {"tree": [_branch(child, depth) for child in module.children]}
        facts = summary.as_dict(largest=top, items=items) | more
        show.as_json(facts, show.budget_for(access["max_expansion"], path))
        return FAILED if failed else FINE
    figures.totals(summary)
    if module is not None:
        figures.modules(module, depth)
    if found is not None:
        figures.flagged(found)
    if module is None and not items and top:
        figures.largest(summary, top)
    figures.about(summary)
    if items:
        figures.items(summary)
    if html is not None:
        show.say(f"the page is in {html}", wrap=False)
    return FAILED if failed else FINE


def _plain(path: str, access: options.Group) -> PlainSummary | None:
    """What is in a file that streamxf.open wrote; None if it is not one."""
    from streamxf.formats.contents import Format
    from streamxf.formats.opening import kind_of
    from streamxf.keys import KeyRing
    from streamxf.tools.inspect.inspect import PlainSummary

    storage = open_storage(path)
    if kind_of(storage) is not Format.PLAIN:
        return None
    return PlainSummary.read(storage, KeyRing.of(access["keys"], access["trust"], access["allow_unsigned"]))


def _branch(module: Module, depth: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": module.name, "times": module.times, **module.totals.as_dict()}
    if isinstance(module.item, TensorItem):
        found |= {"dtype": module.item.dtype, "shape": list(module.item.shape)}
    if module.children and (depth is None or depth > 1):
        deeper = None if depth is None else depth - 1
        found["modules"] = [_branch(child, deeper) for child in module.children]
    return found
