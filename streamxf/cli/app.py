"""The commands, in the order in which ``streamxf --help`` lists them."""

from __future__ import annotations

import shutil
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any

import typer

from streamxf.cli import options
from streamxf.version import __version__

# A command is a function of its own name, in a module of that name unless `_TOGETHER` has another; what is heavy is
# imported when it runs.
PANELS = {
    "Look": ("inspect", "diff", "cat"),
    "Check and repair": ("verify", "salvage", "clean"),
    "Training runs": ("list", "latest", "forget"),
    "Convert": ("pack", "unpack", "transcode", "rename", "stock"),
    "Keys": ("keygen", "rekey", "recipients"),
    "Choose a chain": ("tune", "codecs", "demo"),
}
COMMANDS = [name for panel in PANELS.values() for name in panel]
_FRAMED = 70  # columns: in fewer, typer's tables of options cut words
_TOGETHER = {
    **dict.fromkeys(("pack", "unpack", "transcode", "stock"), "convert"),
    **dict.fromkeys(("keygen", "rekey", "recipients"), "keys"),
}


def _function(command: str) -> Any:
    return getattr(import_module(f"streamxf.cli.{_TOGETHER.get(command, command)}"), command)


def help_of(command: str) -> tuple[str, list[str]]:
    """What a command does, in paragraphs of one line each, and examples of it."""
    text, _, examples = cleandoc(_function(command).__doc__).partition("\n\nExamples:\n")
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n")), examples.split("\n")


def _version(asked: bool) -> None:
    if asked:
        print(f"streamxf {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that stand before the command."""


def command_line(named: str | None = None) -> Any:
    """The command line, as an object of typer: whole, or if a command is `named`, with that one alone."""
    columns = shutil.get_terminal_size().columns
    framed = named not in COMMANDS or columns >= _FRAMED
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if framed else None,
        context_settings={"help_option_names": ["--help", "-h"]} | ({} if framed else {"terminal_width": columns}),
        help="Inspect, check and convert checkpoints of PyTorch Distributed Checkpoint.",
        epilog="Exit codes: 0 success; 1 damaged, different or failed; 2 it could not start.",
    )
    app.callback()(_options)
    for panel, names in PANELS.items():
        for name in [named] if named in names else [] if named in COMMANDS else names:
            text, examples = help_of(name)
            epilog = "\n\n".join(("[bold]Examples[/bold]" if framed else "Examples:", *examples))
            app.command(name, help=text, rich_help_panel=panel, epilog=epilog)(options.expanded(_function(name)))
    root: Any = typer.main.get_command(app)
    for each in (root, *root.commands.values()):
        for parameter in each.get_params(typer.Context(each)):
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""  # else typer shows <bool>
    return root
