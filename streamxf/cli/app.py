"""The commands, in the order in which ``streamxf --help`` lists them."""

from __future__ import annotations

from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any

import typer

from streamxf.cli import options
from streamxf.version import __version__

# Each module has the command as a function of its own name, and examples of it. It imports what is heavy when it runs.
PANELS = {
    "Look": ("inspect", "diff", "cat"),
    "Check and repair": ("verify", "salvage", "clean"),
    "Training runs": ("list", "latest", "forget"),
    "Convert": ("pack", "unpack", "transcode"),
    "Keys": ("keygen", "rekey", "recipients"),
    "Choose a chain": ("tune", "codecs", "demo"),
}
COMMANDS = [name for panel in PANELS.values() for name in panel]


def module_of(command: str) -> Any:
    return import_module(f"streamxf.cli.{command}")


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
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["--help", "-h"]},
        help="Inspect, check and convert checkpoints of PyTorch Distributed Checkpoint.",
        epilog="Exit codes: 0 success; 1 damaged, different or failed; 2 it could not start.",
    )
    app.callback()(_options)
    for panel, names in PANELS.items():
        for name in [named] if named in names else [] if named in COMMANDS else names:
            module = module_of(name)
            command = getattr(module, name)
            paragraphs = (" ".join(part.split()) for part in cleandoc(command.__doc__).split("\n\n"))
            examples = "\n\n".join(("[bold]Examples[/bold]", *module.EXAMPLES))
            put = app.command(name, help="\n\n".join(paragraphs), rich_help_panel=panel, epilog=examples)
            put(options.expanded(command))
    made: Any = typer.main.get_command(app)
    for each in (made, *made.commands.values()):
        for parameter in each.get_params(typer.Context(each)):
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""  # else typer shows <bool>
    return made
