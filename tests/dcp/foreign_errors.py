"""Errors as other libraries define them, most of which do not survive a pickle."""

import threading
from collections.abc import Callable
from typing import Any

from streamxf.errors import BlockError


class NeedsTwo(Exception):
    """Can be pickled, and not unpickled: pickle calls it with the text alone."""

    def __init__(self, operation: str, code: int) -> None:
        super().__init__(f"{operation} failed with {code}")


class HoldsLock(RuntimeError):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class RunsCode(Exception):
    unpickled: list[str] = []  # noqa: RUF012

    def __reduce__(self) -> Any:
        return self.unpickled.append, ("run",)


class RaisesOnLoad(Exception):
    def __reduce__(self) -> Any:
        return int, ("no number",)


class NoText(Exception):
    def __str__(self) -> str:
        raise ValueError("not even a text")


class StoreError(ConnectionError):
    def __init__(self, status: int) -> None:
        super().__init__(104, f"the store answered {status}")


class BadBlock(BlockError):
    """A codec's own class, made in a way of its own."""

    def __init__(self, why: str) -> None:
        super().__init__(f"codec says: {why}", block=3)


class Interrupted(KeyboardInterrupt):
    pass


class Stop(BaseException):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def huge() -> ValueError:
    return ValueError("too much of it", b"x" * 10_000_000)


def holding(thing: Any) -> RuntimeError:
    error = RuntimeError("it holds something")
    error.thing = thing  # type: ignore[attr-defined]
    return error


def local_class() -> Exception:
    class Local(LookupError):
        pass

    return Local("nobody finds this class")


#: Each with the class that other ranks see, and a part of its text.
MADE: dict[str, tuple[Callable[[], BaseException], str, str]] = {
    "two arguments": (lambda: NeedsTwo("put", 503), "ForeignError", "NeedsTwo: put failed with 503"),
    "a lock": (lambda: HoldsLock("locked"), "RuntimeError", "HoldsLock: locked"),
    "code": (lambda: RunsCode("innocent"), "ForeignError", "RunsCode: innocent"),
    "raises": (lambda: RaisesOnLoad("first text"), "ForeignError", "RaisesOnLoad: first text"),
    "no text": (lambda: NoText(), "ForeignError", "NoText"),
    "connection": (lambda: StoreError(500), "ConnectionResetError", "StoreError: [Errno 104] the store answered 500"),
    "codec": (lambda: BadBlock("no"), "BlockError", "BadBlock: codec says: no"),
    "interrupt": (lambda: Interrupted("by hand"), "KeyboardInterrupt", "Interrupted: by hand"),
    "no exception": (lambda: Stop("now", "!"), "ForeignError", "Stop: now!"),
    "huge": (huge, "ValueError", "too much of it"),
    "holding": (lambda: holding(NeedsTwo), "RuntimeError", "it holds something"),
    "local class": (local_class, "LookupError", "nobody finds this class"),
    "group": (lambda: ExceptionGroup("several", [NeedsTwo("get", 1)]), "ForeignError", "several"),
    "decoding": (lambda: UnicodeDecodeError("utf-8", b"x" * 100_000, 0, 1, "bad"), "ForeignError", "can't decode"),
    "plain": (lambda: ValueError("as it is"), "ValueError", "as it is"),
    "a full disk": (lambda: OSError(28, "No space left on device", "a/file"), "OSError", "'a/file'"),
    "memory": (lambda: MemoryError("no more"), "MemoryError", "no more"),
    "exit": (lambda: SystemExit(3), "SystemExit", "3"),
}
