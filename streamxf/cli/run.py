"""The commands, in the order in which ``streamxf --help`` lists them; and `run`, a command up to its exit code."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from inspect import cleandoc
from types import FrameType
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from streamxf.cli import exits, options, ranks
from streamxf.cli.options import ARGUMENTS
from streamxf.cli.show import as_json, wrapped
from streamxf.errors import StreamxfError, notes_of
from streamxf.lazy import NO_TORCH
from streamxf.version import __version__
from streamxf.wording import printable

TRACEBACK = "STREAMXF_TRACEBACK"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # of Ctrl-C, schedulers and closed terminals


def run(arguments: list[str]) -> int:
    """Run a command; returns the exit code. What goes wrong is one line on stderr, or JSON on stdout with --json."""
    _open_closed()
    interrupts = Interrupts()
    output: Any = _Output(sys.stdout)
    with interrupts.watched(), warnings.catch_warnings(), redirect_stdout(output):
        warnings.showwarning = _warn
        # DCP says it of every save and load in a single process, and torch of every quantized tensor
        known = "torch.distributed is disabled, unavailable or uninitialized|TypedStorage is dep|torch.quantize_per_ten"
        warnings.filterwarnings("ignore", message=known)
        return _run(arguments, interrupts)


def _run(arguments: list[str], interrupts: Interrupts) -> int:
    first = arguments[0] if arguments else None
    command = f"streamxf {first}" if first in COMMANDS else "streamxf"
    try:
        try:
            parser = command_line(first)  # building them all takes as long as many a command
            named = parser.commands.get(first)
            names = {each.name: each.opts[0] for each in named.params if each.opts[0][0] == "-"} if named else {}
            exits.OPTIONS.set(names | {name: names[option] for option, name in ARGUMENTS.items() if option in names})
            found = parser.main(arguments, prog_name="streamxf", standalone_mode=False)
            # typer makes the code of a KeyboardInterrupt; a library that was being imported may have swallowed it, and
            # what such a half-imported library led to counts for nothing
            if found == exits.INTERRUPTED or interrupts.first is not None:
                raise KeyboardInterrupt
            sys.stdout.flush()
            return found if isinstance(found, int) else exits.FINE
        except TyperException as error:
            if not error.format_message():  # the help of a command without arguments was shown
                return error.exit_code
            context = getattr(error, "ctx", None)
            place = context.command_path if context is not None else command
            text = error.format_message().rstrip(".").replace("Value error, ", "")
            text = printable(f"{text[:1].lower()}{text[1:]} (see {place} --help)", exits.LINE)
            return _fail(place, text, "Usage", exits.USAGE, arguments)
        except BrokenPipeError:
            raise
        except SystemExit as ended:
            if isinstance(ended.__context__, BrokenPipeError):  # typer and rich make that of it
                raise ended.__context__ from None
            raise
        except BaseException as raised:  # DCP's own is none of Exception
            cause = exits.root_of(raised)
            if interrupts.first is not None or isinstance(cause, KeyboardInterrupt | typer.Abort):
                text = "; ".join(["interrupted", *interrupts.how_to_resume(cause)])
                code = exits.INTERRUPTED if interrupts.first is None else 128 + interrupts.first  # as shells have it
                return _fail(command, printable(text, exits.LINE), "Interrupted", code, arguments)
            return _failed(command, cause, arguments)
    except BrokenPipeError:  # the reader of the output has gone, as in `streamxf inspect ... | head`
        _discard(sys.stdout)
        return exits.PIPE_CLOSED


def _discard(stream: Any) -> None:
    """Drop what could not be written: Python would fail to write it once more when it exits, and change the code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _failed(command: str, error: BaseException, arguments: list[str]) -> int:
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    failure = exits.storage_failure_in(error)
    if failure is not None:
        text = exits.storage_line_of(failure, arguments)
        return _fail(command, text, type(failure).__name__, exits.USAGE, arguments, error)
    if isinstance(error, ImportError) and error.name == "torch":
        return _fail(command, NO_TORCH, "ImportError", exits.USAGE, arguments, error)
    text = exits.with_options(exits.line_of(error))
    if not isinstance(error, StreamxfError | OSError | MemoryError):
        text = f"{text}; this is an error of streamxf's own: {TRACEBACK}=1 shows where it was"
    return _fail(command, text, type(error).__name__, exits.exit_code(error, command), arguments, error)


def _fail(
    command: str, text: str, kind: str, code: int, arguments: list[str], error: BaseException | None = None
) -> int:
    if "--json" in arguments:
        facts: dict[str, object] = {"type": kind, "message": text, "exit_code": code}
        if isinstance(error, StreamxfError):
            facts |= {"file": error.file, "item": error.item, "block": error.block}
        try:
            as_json({"error": facts})
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError:
            """A full disk, say; the line on stderr is still to come."""
    try:
        _say(f"{command}: {text}")
        sys.stderr.flush()
    except OSError:  # the exit code is all that is left then
        _discard(sys.stderr)
    return code


def _open_closed() -> None:
    """Open what is closed, as by ``>&-``: a checkpoint's file would get its number, and whatever any library prints."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - until the process ends


def _warn(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
    _say(f"streamxf: warning: {printable(exits.with_options(' '.join(str(message).split())), exits.LINE)}")


def _say(text: str) -> None:
    """One line on stderr, from one rank of a job; at a terminal, as many as it takes to end each between words."""
    if ranks.first_to_say(text):
        print(wrapped(text, sys.stderr), file=sys.stderr)


class _Output:
    """Standard output, with errors that say so: what was to be done may be, and not printed."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._stream, name)
        return _Output(found) if name == "buffer" else self._named()(found) if name in ("write", "flush") else found

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                _discard(self._stream)
                error.filename = "standard output"
                error.add_note("all but the output may be complete")
            raise


class Interrupts:
    """Turns signals into KeyboardInterrupt, and remembers the first: imports and DCP may make another error of it."""

    def __init__(self) -> None:
        self.first: int | None = None
        self._raised: list[KeyboardInterrupt] = []

    def how_to_resume(self, error: BaseException) -> list[str]:
        """What was noted of that on `error`, or on the interrupts themselves, which typer does not pass on."""
        notes = (note for each in (*self._raised, error) for note in notes_of(each))
        return [note for note in dict.fromkeys(notes) if "repeat" in note]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch for signals in the block. Those that the process was started to ignore, as by nohup, stay ignored."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        try:
            for number, known in before.items():
                if known is not signal.SIG_IGN:
                    signal.signal(number, self._note)
            yield
        finally:
            for number, known in before.items():
                signal.signal(number, known)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.first = self.first or number
        self._raised.append(KeyboardInterrupt())
        raise self._raised[-1]


# Commands by panels, each with its module, in which it is a function of its own name, with an underscore behind a
# builtin's; what is heavy is imported when it runs.
PANELS = {
    "Look": dict.fromkeys(("inspect", "diff", "cat", "viewer"), "look"),
    "Check and repair": dict.fromkeys(("verify", "salvage", "clean"), "check"),
    "Training runs": {**dict.fromkeys(("list", "latest", "forget"), "runs"), "follow": "follow"},
    "Convert": dict.fromkeys(("pack", "unpack", "transcode", "consolidate", "rename", "stock"), "convert"),
    "Keys": dict.fromkeys(("keygen", "sign", "rekey", "recipients"), "convert"),
    "Try it": {"codecs": "check", "check": "check", "demo": "demo"},
}
COMMANDS = {name: module for panel in PANELS.values() for name, module in panel.items()}
_FRAMED = 70  # columns: in fewer, typer's tables of options cut words


def _function(command: str) -> Any:
    found = vars(import_module(f"streamxf.cli.{COMMANDS[command]}"))
    return found.get(command) or found[f"{command}_"]


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
        epilog="Exit codes: 0 success; 1 damaged, different or failed; 2 the command could not start or compare.",
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
