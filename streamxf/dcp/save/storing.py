"""Opening a data file to write, so that nothing of it is stored if that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Any


@contextmanager
def storing(opening: AbstractContextManager[Any]) -> Iterator[IO[bytes]]:
    """Open a file for writing; after an error an upload that was begun is aborted.

    A file of an object store is completed when it is closed, also by an exception that leaves its ``with`` block: half
    of a data file would be stored, and the parts of one that cannot be completed would be kept, and paid for.

    Parameters
    ----------
    opening : context manager
        Opens the file, and closes it.
    """
    stream: Any = None
    discarded = False
    try:
        with opening as stream:
            try:
                yield stream
            except BaseException as error:
                discarded = True
                _discard(stream, error)
                raise
    except BaseException as error:
        if stream is not None and not discarded:  # it could not be closed
            _discard(stream, error)
        raise


def _discard(stream: Any, error: BaseException) -> None:
    if not hasattr(stream, "forced"):  # it is none of fsspec's buffered files, the ones that upload
        return
    try:
        stream.discard()
    except Exception as reason:  # a store that does not answer; it must not hide what went wrong before
        error.add_note(
            f"the upload of this file could not be aborted ({type(reason).__name__}: {reason}); the store may keep its "
            "parts until a rule for incomplete uploads removes them"
        )
    finally:
        stream.closed = True  # or it would be completed with what there is
