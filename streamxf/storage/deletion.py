"""Files removed by their literal paths, many at a time. Fsspec's own `rm` expands `[`, `*` and `?`, and removes what
matches them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from streamxf.storage.calls import begun, is_asynchronous

_BATCH = 1000  # keys, as many as S3 takes in a request
_UNDER_WAY = 16
_PASSING = {"InternalError", "SlowDown", "ServiceUnavailable"}

Failed = dict[str, Exception]


def remove_files(filesystem: Any, paths: Iterable[str]) -> Failed:
    """Remove files of a file system of fsspec's; those that could not be, each with the reason. A file that is not
    there is fine.
    """
    failed: Failed = {}
    if not is_asynchronous(filesystem):
        for path in paths:
            try:
                filesystem.rm_file(path)
            except FileNotFoundError:
                pass
            except Exception as error:  # of whatever class; the others are removed all the same
                failed[path] = error
    elif hasattr(filesystem, "_call_s3"):
        keys = tuple(paths)
        parts = (keys[at : at + _BATCH] for at in range(0, len(keys), _BATCH))
        requests = ((part, _batch_of(filesystem, part)) for part in parts)
        for part, outcome in _outcomes(filesystem, requests):
            failed |= outcome if isinstance(outcome, dict) else dict.fromkeys(part, outcome)
    else:
        single = (((path,), _one_of(filesystem, path)) for path in paths)
        for (path, *_), outcome in _outcomes(filesystem, single):
            failed |= {path: outcome} if isinstance(outcome, Exception) else {}
    return failed


Request = tuple[tuple[str, ...], Callable[[], Awaitable[Failed]]]


def _outcomes(filesystem: Any, requests: Iterator[Request]) -> Iterator[tuple[tuple[str, ...], Failed | Exception]]:
    """Make requests, some at a time: of each, the paths, and what came of it."""
    under_way: deque[tuple[tuple[str, ...], Future[Failed]]] = deque()
    try:
        for paths, request in requests:
            under_way.append((paths, begun(filesystem, request)))
            if len(under_way) == _UNDER_WAY:
                yield _outcome(under_way)
        while under_way:
            yield _outcome(under_way)
    finally:
        for _, future in under_way:  # an interrupt of this thread
            future.cancel()


def _outcome(
    under_way: deque[tuple[tuple[str, ...], Future[Failed]]],
) -> tuple[tuple[str, ...], Failed | Exception]:
    paths, future = under_way[0]
    try:
        found: Failed | Exception = future.result()
    except Exception as error:  # of whatever class
        found = error
    under_way.popleft()
    return paths, found


def _batch_of(filesystem: Any, paths: tuple[str, ...]) -> Callable[[], Awaitable[Failed]]:
    """One request to S3. That of s3fs (`_bulk_delete`) drops what the server says of keys it did not remove."""
    bucket = filesystem.split_path(paths[0])[0]
    keys = {path.lstrip("/")[len(bucket) + 1 :]: path for path in paths}

    async def request() -> Failed:
        wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = await filesystem._call_s3("delete_objects", Bucket=bucket, Delete=wanted)
        errors = [each for each in answer.get("Errors", ()) if each.get("Code") != "NoSuchKey"]
        for each in errors:
            if each.get("Code") in _PASSING:
                raise OSError(_text(each))  # and the request is repeated
        return {
            keys[each["Key"]]: (PermissionError if each.get("Code") == "AccessDenied" else OSError)(_text(each))
            for each in errors
        }

    return request


def _text(error: dict[str, Any]) -> str:
    return f"{error.get('Code')}: {error.get('Message')} ({error.get('Key')})"


def _one_of(filesystem: Any, path: str) -> Callable[[], Awaitable[Failed]]:
    async def request() -> Failed:
        with suppress(FileNotFoundError):
            await filesystem._rm_file(path)
        return {}

    return request
