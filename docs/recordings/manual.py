"""The manual page of all commands, out of the program's own definitions."""

from inspect import cleandoc
from typing import Any

from docs.recordings.reference import names, text_of
from streamxf.cli.run import COMMANDS, command_line, help_of


def manual() -> str:
    """The page in the language of man(7)."""
    parser = command_line()
    lines = [
        ".TH STREAMXF 1",
        ".SH NAME",
        f"streamxf \\- {_roff(parser.help[0].lower() + parser.help[1:].rstrip('.'))}",
    ]
    lines += [".SH SYNOPSIS", ".B streamxf", ".I COMMAND", "[OPTION]...", ".PP", _roff(parser.epilog)]
    for name in COMMANDS:
        command = parser.commands[name]
        lines += [f".SH STREAMXF {name.upper()}", *_paragraphs(command.help)]
        for parameter in command.params:
            lines += [".TP", f".B {_roff(', '.join(names(parameter)))}", _roff(text_of(parameter))]
        lines += [".PP", "Examples:", ".PP", ".nf", *map(_roff, help_of(name)[1]), ".fi"]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> list[str]:
    return [line for part in cleandoc(text).split("\n\n") for line in (".PP", _roff(part))]


def _roff(text: Any) -> str:
    """Text that man shows as it is."""
    escaped = str(text).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
