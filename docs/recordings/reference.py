"""The reference of all commands, out of the program's own definitions."""

import re
from collections import Counter
from collections.abc import Callable
from inspect import cleandoc
from typing import Any, Literal, get_args, get_origin

from streamxf.cli.run import COMMANDS, command_line, help_of

_COMMON = 3  # commands that have an option, for it to be explained once for all


def reference() -> str:
    """A section for each command: what it does, its arguments and options, and examples; first what they share."""
    commands: dict[str, Any] = command_line().commands
    counts = Counter(_row(parameter) for command in commands.values() for parameter in command.params)
    common = [row for row, count in counts.items() if count >= _COMMON]
    shared = "\n".join(["### What commands have in common", *common])
    return "\n\n".join([shared, *(_section(commands[name], help_of(name)[1], common) for name in COMMANDS)])


def _section(command: Any, examples: list[str], common: list[str]) -> str:
    parts = list(map(_escaped, cleandoc(command.help).split("\n\n")))
    parts[0] = f"### streamxf {command.name}\n{parts[0]}"
    parts.append("\n".join(f"    {example}" for example in examples))
    own = [row for row in map(_row, command.params) if row not in common]
    shared = dict.fromkeys(names(parameter)[0] for parameter in command.params if _row(parameter) in common)
    if shared:
        own.append(f"- In common with others: {', '.join(f'`{name}`' for name in shared)}.")
    return "\n\n".join([*parts, "\n".join(own)])


def names(parameter: Any) -> list[str]:
    if parameter.param_type_name == "argument":
        return [_value(parameter)]
    value = "" if parameter.is_flag else f" {_value(parameter)}"
    return [f"{name}{value}" for name in parameter.opts]


def _row(parameter: Any) -> str:
    return f"- {', '.join(f'`{name}`' for name in names(parameter))}: {text_of(parameter, _escaped, '`')}"


def text_of(parameter: Any, escaped: Callable[[str], str] = str, quote: str = "") -> str:
    """What an option means, and its default."""
    text = escaped(" ".join((parameter.help or "").split()))
    default = parameter.default
    if parameter.required and parameter.param_type_name == "option":
        text += " Required."
    elif default not in (None, False, ""):
        text += f" By default {quote}{default}{quote}."
    if parameter.envvar:
        text += f" Also from {quote}{parameter.envvar}{quote}."
    return text


def _value(parameter: Any) -> str:
    """What stands in the place of a value."""
    kind = parameter.type_descriptor.annotation
    if get_origin(kind) is Literal:
        return "{" + ",".join(get_args(kind)) + "}"
    name = str(parameter.metavar or parameter.name.upper())
    return name if parameter.required or parameter.param_type_name == "option" else f"[{name}]"


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([*_<>|`\[\]])", r"\\\1", text)
