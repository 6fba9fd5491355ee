"""`Upload`: a file for an object store, whose parts are uploaded while what follows is still being written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import IO, Any, cast

from typing_extensions import Buffer

from streamxf.buffers import flat_view
from streamxf.storage.calls import begun, made
from streamxf.storage.multipart import Multipart, multipart_of

PART_BYTES = 8 * 2**20
_UNDER_WAY = 4  # parts; each takes its bytes of memory, as does the one that is being filled
_LONGER = ((8_000, 64), (5_000, 8))
"""From which part on they are how many times as long, and go one by one. S3 takes 10,000: a terabyte fits. A store that
wants all of them equal, such as R2, takes 40 GiB."""


class Upload:
    """A file that is written from its start to its end. The object appears when the upload is completed, at once and
    whole; leaving ``with`` by an error aborts it.
    """

    def __init__(self, filesystem: Any, multipart: Multipart) -> None:
        self._filesystem = filesystem
        self._multipart = multipart
        self._part = bytearray()
        self._begun = False
        self._under_way: deque[Future[Any]] = deque()
        self._parts: list[Any] = []
        self._number = 0

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            try:
                self._complete()
            except BaseException as reason:
                self._abort(reason)
                raise
        else:
            self._abort(error)

    def write(self, data: Buffer, /) -> int:
        """Take all of `data`; raises what went wrong with an earlier part."""
        view = flat_view(data)
        done = 0
        while done < len(view):
            piece = view[done : done + self._part_bytes - len(self._part)]
            self._part += piece
            done += len(piece)
            if len(self._part) == self._part_bytes:
                self._send()
        return done

    def flush(self) -> None:
        """Nothing can be had of an object before it is complete."""

    @property
    def _part_bytes(self) -> int:
        return PART_BYTES * self._longer

    @property
    def _longer(self) -> int:
        return next((times for number, times in _LONGER if self._number >= number), 1)

    def _send(self) -> None:
        if not self._begun:
            made(self._filesystem, self._multipart.begin)
            self._begun = True
        while len(self._under_way) >= (_UNDER_WAY if self._longer == 1 else 1):
            self._take()
        self._number += 1
        number, data = self._number, self._part
        self._part = bytearray()
        self._under_way.append(begun(self._filesystem, lambda: self._multipart.part(number, data)))

    def _take(self) -> None:
        self._parts.append(self._under_way.popleft().result())

    def _complete(self) -> None:
        data = self._part
        if not self._begun:
            made(self._filesystem, lambda: self._multipart.put(data))
            return
        if data:
            self._send()
        while self._under_way:
            self._take()
        made(self._filesystem, lambda: self._multipart.complete(self._parts))

    def _abort(self, error: BaseException) -> None:
        wait(self._under_way)  # a part that arrives after the upload was aborted may be kept all the same
        if not self._begun:
            return
        try:
            made(self._filesystem, self._multipart.abort)
        except Exception as reason:  # a store that does not answer; it must not hide what went wrong before
            error.add_note(_kept(reason))


@contextmanager
def creating(filesystem: Any, path: str) -> Iterator[IO[bytes]]:
    """A new file of a file system of fsspec's, for writing once and in order. After an error nothing of it is left, as
    far as the storage can be reached.
    """
    multipart = multipart_of(filesystem, path)
    if multipart is not None:
        with Upload(filesystem, multipart) as upload:
            yield cast("IO[bytes]", upload)
        return
    stream = filesystem.open(path, "wb")
    try:
        yield stream
        stream.close()
    except BaseException as error:
        _discard(filesystem, path, stream, error)
        raise


def _discard(filesystem: Any, path: str, stream: Any, error: BaseException) -> None:
    """Closing a file would store it, by an error that leaves ``with``, too: half of a data file."""
    uploads = hasattr(stream, "forced")  # one of fsspec's buffered files, which appear when they are closed
    try:
        if uploads:
            stream.discard()
        else:
            stream.close()
            filesystem.rm_file(path)
    except Exception as reason:
        error.add_note(_kept(reason))
    finally:
        if uploads:
            stream.closed = True


def _kept(reason: Exception) -> str:
    return (
        f"the upload of this file could not be aborted ({type(reason).__name__}: {reason}); the store keeps its parts "
        "until `streamxf clean` or a rule for incomplete uploads removes them"
    )
