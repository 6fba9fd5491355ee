"""``streamxf`` in processes of its own that start at once: each is a copy of one that has imported torch, which takes
a second and more, and done nothing else. So does Python code, as ``python -c`` runs it: `script`.

Not for tests of how the interpreter itself starts: with closed streams, ignored signals, or what it imports.
"""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType

STREAMS = (0, 1, 2)
_REQUEST_BYTES = 1 << 20
_SOCKET = "STREAMXF_TEST_SOCKET"  # the number of a descriptor, for `main`


class Process:
    """A command that was started."""

    def __init__(self, told: socket.socket) -> None:
        self._told = told
        self.pid = int(told.recv(100))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        if self.returncode is None:
            with suppress(BlockingIOError):
                self._take(self._told.recv(100, socket.MSG_DONTWAIT))
        return self.returncode

    def wait(self) -> int:
        """Wait for its end; gives its exit code, negative if a signal ended it."""
        if self.returncode is None:
            self._take(self._told.recv(100))
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it, if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ends just now, and says so a moment later
                os.kill(self.pid, number)

    def _take(self, told: bytes) -> None:
        self.returncode = int(told)
        self._told.close()


def start(
    arguments: Sequence[object],
    streams: Sequence[int] = STREAMS,
    *,
    cwd: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    imports: Sequence[str] = (),
) -> Process:
    """Start a command whose stdin, stdout and stderr are `streams`, by default those of this process, and which has
    imported more modules.
    """
    return _ask(_server(*imports), arguments, streams, cwd or os.getcwd(), environment or os.environ)


def run(
    arguments: Sequence[object], *, cwd: str | Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command without input, and take what it prints."""
    out, err = (os.memfd_create(name) for name in ("stdout", "stderr"))
    try:
        with open(os.devnull) as nothing:
            streams = (nothing.fileno(), out, err)
            code = start(arguments, streams, cwd=cwd, environment=os.environ | environment).wait()
        found = [os.fsdecode(os.pread(stream, os.fstat(stream).st_size, 0)) for stream in (out, err)]
    finally:
        os.close(out)
        os.close(err)
    return subprocess.CompletedProcess([*map(str, arguments)], code, *found)


def script(
    code: str, *arguments: object, cwd: str | Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python code, with arguments in `sys.argv`, and take what it prints."""
    return run(["-c", code, *arguments], cwd=cwd, **environment)


def module(name: str, *arguments: object, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a module, as ``python -m`` does, and some code before it, and take what it prints."""
    code = f"{before}\nimport runpy\nrunpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
    return script(code, *arguments, **environment)


def inherited() -> tuple[int, dict[str, str]]:
    """What a process needs in which `main` is to work: a descriptor to be kept open, and environment variables."""
    number = _server().fileno()
    return number, {_SOCKET: str(number)}


def main() -> None:
    """As ``streamxf``, for shells: ``python -m`` this file."""
    with socket.socket(fileno=os.dup(int(os.environ[_SOCKET]))) as server:
        code = _ask(server, sys.argv[1:], STREAMS, os.getcwd(), os.environ).wait()
    sys.exit(code if code >= 0 else 128 - code)


@cache
def _server(*imports: str) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-W", "ignore", __file__, "serve", str(theirs.fileno()), *imports]
        subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)  # ends when `ours` is closed
    return ours


def _ask(
    server: socket.socket,
    arguments: Sequence[object],
    streams: Sequence[int],
    cwd: str | Path,
    environment: Mapping[str, str],
) -> Process:
    told, tells = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with tells:
        request = json.dumps([[*map(str, arguments)], str(cwd), dict(environment)]).encode()
        socket.send_fds(server, [request], [*streams, tells.fileno()])
    return Process(told)


def _serve(server: socket.socket) -> list[str] | None:
    """Fork for each request; returns in the children, with the arguments of a command, and at the end with None."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch
    while True:
        request, descriptors, _, _ = socket.recv_fds(server, _REQUEST_BYTES, len(STREAMS) + 1)
        if not request:
            return None
        if not os.fork():
            server.close()
            arguments, cwd, environment = json.loads(request)
            _watched(descriptors.pop())
            for number, descriptor in zip(STREAMS, descriptors, strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.chdir(cwd)
            os.environ.clear()
            os.environ.update(environment)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return [str(argument) for argument in arguments]
        for descriptor in descriptors:
            os.close(descriptor)


def _watched(tells: int) -> None:
    """Go on in a child, in a session of its own; this process waits for it, and says who it is and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if not child:
        os.close(tells)
        os.setsid()
        return
    os.closerange(0, tells)
    os.closerange(tells + 1, tells + 100)
    os.write(tells, str(child).encode())
    os.write(tells, str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
    os._exit(0)


def _served(descriptor: int, *imports: str) -> None:
    import runpy
    from importlib import import_module

    import torch.distributed.checkpoint  # noqa: F401

    import streamxf
    from streamxf.cli.__main__ import main as command

    assert all(hasattr(streamxf, name) for name in streamxf.__all__)  # which imports what has them
    for name in imports:
        import_module(name)

    with open(os.devnull, "w") as nothing:
        sys.stdout = nothing
        command(["codecs"])
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=descriptor) as server:
        arguments = _serve(server)
    if arguments is None:
        return
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, closefd=False, errors="backslashreplace")
    if arguments[:1] == ["-c"]:
        sys.path[0], sys.argv = "", ["-c", *arguments[2:]]
        sys.modules["__main__"] = module = ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), module.__dict__)
        return
    sys.argv[1:] = arguments
    runpy.run_module("streamxf.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        _served(int(sys.argv[2]), *sys.argv[3:])
    else:
        main()
