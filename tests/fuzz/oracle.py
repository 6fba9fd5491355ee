"""What counts as a finding, for all targets."""

import os
import resource
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lz4.block import LZ4BlockError
from zstandard import ZstdError

from streamxf.errors import CodecError, StreamxfError

T = TypeVar("T")

# Bytes that one input may add to the process's greatest size. 16 MiB is the largest block, and a chain may have eight
# steps with memory of their own.
MEMORY_CAP = int(os.environ.get("FUZZ_MEMORY_MIB", "512")) << 20

# What the libraries beneath the codecs raise for bytes that they do not take.
_LIBRARIES = (ZstdError, LZ4BlockError)


class Finding(AssertionError):
    """streamxf did what it must not do."""


def attempt(action: Callable[[], T]) -> tuple[T | None, StreamxfError | None]:
    """What `action` gives, or the `StreamxfError` that it raises. Every other exception is a finding and passes."""
    with modest():
        try:
            return action(), None
        except StreamxfError as error:
            check_causes(error)
            return None, error


def check_causes(error: StreamxfError) -> None:
    """A refusal must not be a mishap in disguise: memory that ran out, or a codec that stumbled."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or (isinstance(cause, AssertionError) and not _of_torch(cause)):
            raise Finding(f"{type(cause).__name__} behind {error!r}") from error
        if isinstance(cause, CodecError) and not isinstance(cause.__cause__, (*_LIBRARIES, StreamxfError, type(None))):
            raise Finding(f"a codec raised {cause.__cause__!r}") from error
        cause = cause.__cause__ or cause.__context__


def _of_torch(error: BaseException) -> bool:
    """Whether torch raised it: its unpickler asserts what it expects of a pickle."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "torch"


@contextmanager
def modest() -> Iterator[None]:
    """No more memory than the cap."""
    before = _peak()
    yield
    if (grown := _peak() - before) > MEMORY_CAP:
        raise Finding(f"one input took {grown >> 20} MiB")


def agree(condition: bool, what: str) -> None:
    """Two ways to read the same bytes must give the same."""
    if not condition:
        raise Finding(what)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
