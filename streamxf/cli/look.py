"""``streamxf inspect``, ``diff`` and ``cat``."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any

import typer

import streamxf
from streamxf.buffers import write_all
from streamxf.cli import options, show
from streamxf.cli.exits import FAILED, FINE, USAGE, with_options
from streamxf.errors import ParameterError, PolicyError, UnsupportedError, located
from streamxf.lazy import torch
from streamxf.places import open_storage
from streamxf.wording import printable

if TYPE_CHECKING:
    from streamxf.tools.inspect.inspect import Module, PlainSummary

_PAGE = b"<!doctype html>"
_FAILURES = ("nan", "inf", "zeros")
_STEP = 16 * 2**20  # bytes: as many blocks as keep the workers busy
_TEXT_STEP = 2**20  # of elements, which take fifty times as much as text
_NUMBER = r"\s*(?:-?\d{1,18})?\s*"
_INDEX = re.compile(rf"\s*\.\.\.\s*|\s*-?\d{{1,18}}\s*|{_NUMBER}:{_NUMBER}(?::(?!\s*-?0){_NUMBER})?", re.ASCII)


def _chosen(text: str | None) -> str | None:
    """Check what ``--fail-on`` names."""
    for word in text.split(",") if text is not None else ():
        if word not in _FAILURES:
            raise typer.BadParameter(f"{word!r:.40} is unknown; choose from {', '.join(_FAILURES)}")
    return text


def inspect(
    path: str = options.PATH,
    tree: bool = options.flag("Group by module; equal layers share a line."),
    depth: int | None = options.value("N", "Show the tree, down to this many levels of modules.", min=1),
    top: int = options.value("N", "Number of largest tensors to list.", 10, min=0),
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
    too, and unreadable ones are named. A missing or truncated file counts as damage.

    The ratio is the stored bytes of tensors divided by their bytes in memory.

    Exit codes: 0 success; 1 damaged, or --fail-on found something; 2 neither, but something could not be read, or the
    command could not start.

    Examples:
    streamxf inspect /checkpoints/step-1000
    streamxf inspect model.safetensors --tree --depth 3
    streamxf inspect /checkpoints/step-1000 --html step-1000.html
    streamxf inspect /checkpoints/step-1000 --fail-on nan,inf
    """
    from streamxf.cli import figures
    from streamxf.tools.inspect.inspect import tree_of

    if html is not None:
        _check_page(html)
    values = values or fail_on is not None
    try:
        with out.progress("Counting values") if values else nullcontext() as bar:
            summary = streamxf.inspect(path, **access, values=values, progress=bar)
    except UnsupportedError:
        plain = _plain(path, access)
        if plain is None or html is not None or values:  # a stream of bytes has no page, and no values
            raise
        return out.result(plain.as_dict(), figures.plain(plain))
    found = summary.values
    asked = fail_on.split(",") if fail_on is not None else []
    late = summary.contents.incomplete and open_storage(path).is_late
    failed = bool(summary.contents.incomplete) and not late
    failed |= found is not None and any(getattr(found, what) for what in [*asked, "unreadable"])
    code = FAILED if failed else USAGE if late or (found is not None and found.unread) else FINE
    module = tree_of(summary.contents.items.values()) if tree or depth else None
    if html is not None:
        from streamxf.tools.inspect.page.page import html_page

        _write_page(html, html_page(summary))
    if out.json:
        more = {} if module is None else {"tree": [_branch(child, depth) for child in module.children]}
        budget = show.budget_for(access["max_expansion"], path)
        show.as_json(summary.as_dict(largest=top, items=items) | more, budget)
        return code
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
    return code


def _check_page(path: str) -> None:
    """Raise an error for a file that is there and is no page."""
    if os.path.isfile(path) and os.path.getsize(path):
        with open_storage(path).open() as old:
            if old.read(0, min(old.size, len(_PAGE))) != _PAGE:
                raise FileExistsError(17, "the file exists and is not an HTML page; it was not replaced", path)


def _write_page(path: str, page: str) -> None:
    with open_storage(path).replacing() as draft:
        write_all(draft, memoryview(page.encode()))


def viewer(file: str = options.argument("FILE", "Where to write the page."), *, out: show.Output) -> int:
    """Write an HTML page that opens checkpoints in a browser, without a server and without Python.

    In the page, choose or drop a folder: it shows what inspect --html shows, and the values of tensors. The page is one
    file, and its policy forbids it to connect to anything. It reads checkpoints of streamxf, encrypted ones with a key
    that is pasted and not stored. Hybrid keys, passphrases, pickled objects and checkpoints of torch's own writers are
    left to the other commands.

    Examples:
    streamxf viewer viewer.html
    """
    from streamxf.tools.inspect.page.page import viewer_page

    _check_page(file)
    _write_page(file, viewer_page())
    return out.result({"page": file}, f"the page is in {file}")


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
    from streamxf.reading import TensorItem

    found: dict[str, Any] = {"name": module.name, "times": module.times, **module.totals.as_dict()}
    if isinstance(module.item, TensorItem):
        found |= {"dtype": module.item.dtype, "shape": list(module.item.shape)}
    if module.children and (depth is None or depth > 1):
        found["modules"] = [_branch(child, depth and depth - 1) for child in module.children]
    return found


def diff(
    a: str = options.PATH,
    b: str = options.PATH,
    only: list[str] | None = options.ONLY,
    prefix_a: str = options.value("TEXT", "Only items of A with this prefix, which is removed from their names.", ""),
    prefix_b: str = options.value("TEXT", "The same for B.", ""),
    top: int = options.value("N", "Number of items of each kind to list; --json has all.", 20, min=0),
    values: bool = options.flag("Show statistics of B minus A: range, mean, standard deviation and distribution."),
    plain_a: bool = options.flag("A is not encrypted; the keys are only for B."),
    plain_b: bool = options.flag("The same for B."),
    *,
    access: options.Group,
    out: show.Output,
) -> int:
    """Compare two checkpoints of any formats: what was added, removed or changed, and by how much.

    Tensors are the same if all their bits are. An element that became NaN, or is NaN with other bits, has no distance
    and is counted separately. A packed folder is compared with a folder, or with another packed one, file by file.
    Otherwise only tensors and objects are compared, so a checkpoint equals the file that it was packed from, unless
    that has objects that `pack` keeps only as bytes; the report lists anything not compared. An item that cannot be
    read is listed with the reason.

    Exit codes: 0 the same; 1 different; 2 no difference was found, but something could not be read, or the command
    could not start.

    Examples:
    streamxf diff /checkpoints/step-1000 /checkpoints/step-2000
    streamxf diff /checkpoints/step-1000 model.safetensors --prefix-a model.
    streamxf diff before after --only '*.weight' --values
    """
    with out.progress("Comparing") as bar:
        try:
            found = streamxf.diff(
                a,
                b,
                **access,
                encrypted=(not plain_a, not plain_b),
                only=only or (),
                prefixes=(prefix_a, prefix_b),
                values=values,
                progress=bar,
            )
        except PolicyError as error:
            if access["keys"] and not (plain_a or plain_b):
                error.add_note("where only one of the two is encrypted, say which is not: --plain-a or --plain-b")
            raise
    found = replace(found, incomparable={name: with_options(why) for name, why in found.incomparable.items()})
    if out.json:
        show.as_json({"same": found.same, **asdict(found)}, show.budget_for(access["max_expansion"], a, b))
    else:
        show.say(f"{printable(a)} and {printable(b)}: {found.text(top)}")
        if values and top:
            from streamxf.cli.figures import value_cells, value_table

            rows = value_table("B minus A")
            counted = ((one.name, one.distance.statistics) for one in found.changed if one.distance)
            for name, statistics in islice((each for each in counted if each[1]), top):
                rows.row(name, *value_cells(statistics))
            rows.print()
    return FINE if found.same else FAILED if found.differs else USAGE


def cat(
    path: str = options.argument(
        "PATH",
        "A file that streamxf.open wrote, - for standard input, or, with ITEM, a checkpoint; or its URL.",
        callback=lambda path: path if path == "-" else options.existing(path),
    ),
    item: str | None = options.argument(
        "ITEM", "An item of a DCP checkpoint, or a part of a tensor, as in 'w[10:20, :, 3]'.", None
    ),
    text: bool = options.flag("Write a tensor's elements as text, one line per row, and a value as JSON."),
    *,
    access: options.Group,
) -> int:
    """Decode a file that streamxf.open wrote, or an item of a checkpoint, to standard output.

    Each block is checked before it is written. At a damaged block the command ends with exit code 1, and the output so
    far is intact.

    The elements of a tensor are written in row-major order; for a part of it, only the blocks that hold it are read.
    Indices are Python's, without negative steps; quote them for the shell. An item whose own name ends in brackets is
    found by that name. An object is written as it is stored: as a torch.save file or, if it is a plain value such as a
    number or a dict of texts, in CBOR. With --text, a value is written as JSON, or as Python shows it where JSON has no
    such value.

    Examples:
    streamxf cat weights.pt.sxf --key file:team.key > weights.pt
    curl -s https://host/data.tar.sxf | streamxf cat - | tar -x
    streamxf cat step-1000 'model.embed.weight[10:20, :8]' --text
    streamxf cat step-1000 optimizer.step --text
    """
    from streamxf.keys import KeyRing

    if item is not None:
        framework: Any = "torch" if find_spec("torch") else "numpy"
        with located(file=path), streamxf.Checkpoint(path, framework=framework, **access) as checkpoint:
            for piece in _item(checkpoint, item, text):
                write_all(sys.stdout.buffer, memoryview(piece))
        return FINE
    if access["require"]:
        raise ParameterError("--require is for items of checkpoints: name one")
    ring = KeyRing.of(access["keys"], access["trust"], access["allow_unsigned"])
    buffer = bytearray(_STEP)
    with located(file=None if path == "-" else path), streamxf.open(_place(path), keys=ring) as reader:
        while count := reader.readinto(buffer):
            sys.stdout.buffer.write(memoryview(buffer)[:count])
    return FINE


def _item(checkpoint: streamxf.Checkpoint, wanted: str, text: bool) -> Iterator[Any]:
    """What `cat` writes of an item, or of a part of one, piece by piece."""
    from streamxf.checkpoint.checkpoint import ObjectHandle
    from streamxf.reading import ItemPart, Kind
    from streamxf.tools.values.statistics import is_number

    whole = wanted in checkpoint
    name, bracket, indices = (wanted, "", "...") if whole else wanted.removesuffix("]").rpartition("[")
    if not whole and (name not in checkpoint or not wanted.endswith("]")):
        raise ParameterError(f"no item is called {wanted!r:.200}; streamxf inspect --items lists the names of all")
    handle = checkpoint[name]
    if isinstance(handle, ObjectHandle):
        stored = checkpoint.stored[name]
        if bracket:
            raise ParameterError("this item is an object: leave the part in brackets out", item=name)
        if text and ItemPart(stored).kind is not Kind.VALUE:
            raise ParameterError("this item is an object of torch.save, which has no text: leave --text out", item=name)
        yield f"{_text_of(handle.read())}\n".encode() if text else checkpoint.read_stored(stored)
        return
    key = tuple(_index(part, name) for part in indices.split(","))
    if text and not is_number(handle.dtype):
        raise UnsupportedError(f"torch has no text for {handle.dtype}: leave --text out", item=name)
    pieces: Iterator[tuple[Any, bool]] = handle.pieces(key, _TEXT_STEP if text else _STEP)
    try:
        for made, ends in pieces:
            rows = made.reshape(-1, made.shape[-1] if made.ndim else 1) if text and math.prod(made.shape) else ()
            end = "\n" if ends else " "
            yield from (f"{' '.join(map(str, row.tolist()))}{end}".encode() for row in rows)
            if not text:
                flat = made.reshape(-1)
                yield flat.view(torch.uint8).numpy() if find_spec("torch") else flat.view("u1")
    except IndexError as error:
        raise ParameterError(f"[{indices}]: {error}; the tensor's shape is {list(handle.shape)}", item=name) from None


def _text_of(value: Any) -> str:
    """A value as JSON if that gives it back, with its types; else as Python shows it."""
    with suppress(TypeError, ValueError):
        text = json.dumps(value, allow_nan=False)
        if json.loads(text) == value:
            return text
    return repr(value)


def _index(text: str, item: str) -> Any:
    if _INDEX.fullmatch(text) is None:
        raise ParameterError(f"{text!r:.80} is no index: write 3, 10:20, 10:20:2, : or ..., with commas", item=item)
    if text.strip() == "...":
        return Ellipsis
    numbers = [int(number) if number.strip() else None for number in text.split(":")]
    return slice(*numbers) if len(numbers) > 1 else numbers[0]


def _place(path: str) -> Any:
    if path == "-":
        stdin: Any = sys.stdin.buffer
        _refuse_others(stdin.peek)
        return stdin
    storage = open_storage(path)
    if storage.is_folder():
        raise UnsupportedError(
            "this is a folder; cat decodes a file that streamxf.open wrote, or of a checkpoint the item that you name. "
            "unpack writes all of it as a file",
            file=path,
        )
    with storage.doubting(), storage.open() as file:
        _refuse_others(lambda size: file.read(0, min(file.size, size)))
    return storage


def _refuse_others(peek: Callable[[int], Any]) -> None:
    """Raise UnsupportedError for another format: nothing is damaged then."""
    from streamxf.reading import StoredFile  # the help is shown without it

    beginning = bytes(peek(len(StoredFile.PLAIN)))
    if beginning and not StoredFile.PLAIN.startswith(beginning[: len(StoredFile.PLAIN)]):
        raise UnsupportedError("this is not a file that streamxf.open wrote: it begins with other bytes")
