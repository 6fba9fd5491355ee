"""The commands, in the order in which ``streamxf --help`` lists them."""

from __future__ import annotations

from inspect import cleandoc
from types import ModuleType
from typing import Annotated

import typer

from streamxf.cli import (
    bench,
    cat,
    clean,
    codecs,
    demo,
    diff,
    inspect,
    keygen,
    pack,
    recipients,
    rekey,
    salvage,
    transcode,
    tune,
    unpack,
    verify,
)
from streamxf.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
    help="See, check, convert and move checkpoints of PyTorch Distributed Checkpoint.",
    epilog="Exit codes: 0 fine; 1 damaged, different or failed; 2 it could not begin with what it was given.",
)

LOOK, CHECK, CONVERT, KEYS, CHOOSE = "Look", "Check and repair", "Convert", "Keys", "Choose a chain"

# Each module has the command as a function of its own name, and examples of it; what is heavy is imported when it runs.
COMMANDS: tuple[tuple[ModuleType, str], ...] = (
    (inspect, LOOK),
    (diff, LOOK),
    (cat, LOOK),
    (verify, CHECK),
    (salvage, CHECK),
    (clean, CHECK),
    (pack, CONVERT),
    (unpack, CONVERT),
    (transcode, CONVERT),
    (keygen, KEYS),
    (rekey, KEYS),
    (recipients, KEYS),
    (tune, CHOOSE),
    (bench, CHOOSE),
    (codecs, CHOOSE),
    (demo, CHOOSE),
)


def _paragraphs(text: str) -> str:
    """Text whose lines may be refilled: only an empty line ends a paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(text).split("\n\n"))


for module, panel in COMMANDS:
    name = module.__name__.rpartition(".")[2]
    command = getattr(module, name)
    examples = "\n\n".join(module.EXAMPLES)
    app.command(
        name,
        help=_paragraphs(command.__doc__),
        rich_help_panel=panel,
        epilog=f"[bold]Examples[/bold]\n\n{examples}",
    )(command)


def _version(asked: bool) -> None:
    if asked:
        print(f"streamxf {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that stand before the command."""
