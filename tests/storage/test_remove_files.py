"""Files removed from stores that take one request for each, or one for many."""

import asyncio
from typing import Any

import pytest
from fsspec.asyn import AsyncFileSystem

from streamxf.storage import fetch
from streamxf.storage.remote import remove_files


class Store(AsyncFileSystem):  # type: ignore[misc]
    cachable = False

    def __init__(self, paths: list[str]) -> None:
        super().__init__()
        self.paths = set(paths)
        self.at_once = self.most = 0

    async def _rm_file(self, path: str, **_: Any) -> None:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0.001)
        self.at_once -= 1
        if path == "box/mine":
            raise PermissionError(path)
        if path not in self.paths:
            raise FileNotFoundError(path)
        self.paths.remove(path)


class Batches(Store):
    """As s3fs, with a server that is too busy at first."""

    def __init__(self, paths: list[str], busy: int) -> None:
        super().__init__(paths)
        self.busy = busy

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key.partition("?versionId=")[0], None

    async def _call_s3(self, method: str, Bucket: str, Delete: Any) -> Any:
        assert (method, Bucket) == ("delete_objects", "box")
        keys = [each["Key"] for each in Delete["Objects"]]
        assert len(keys) <= 1000
        if self.busy:
            self.busy -= 1
            return {"Errors": [{"Key": keys[0], "Code": "SlowDown", "Message": "later"}]}
        self.paths -= {f"box/{key}" for key in keys}
        codes = {"gone": "NoSuchKey", "mine": "AccessDenied", "odd": "Odd"}
        return {"Errors": [{"Key": key, "Code": codes[key], "Message": "no"} for key in keys if key in codes]}


def test_one_by_one() -> None:
    store = Store([f"box/{number}*" for number in range(50)] + ["box/1"])
    failed = remove_files(store, [*(f"box/{number}*" for number in range(50)), "box/gone", "box/mine"])
    assert store.paths == {"box/1"}
    assert {path: type(error) for path, error in failed.items()} == {"box/mine": PermissionError}
    assert 1 < store.most <= fetch._UNDER_WAY


def test_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_PAUSE", 0.001)
    names = [f"box/{number}" for number in range(2500)] + ["box/a?versionId=7"]
    store = Batches([*names, "box/a", "box/stays"], busy=2)
    failed = remove_files(store, [*names, "box/gone", "box/mine", "box/odd"])
    assert store.paths == {"box/a", "box/stays"}
    assert {path: type(error) for path, error in failed.items()} == {"box/mine": PermissionError, "box/odd": OSError}


def test_a_store_that_stays_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_PAUSE", 0.001)
    failed = remove_files(Batches(["box/a", "box/b"], busy=99), ["box/a", "box/b"])
    assert failed.keys() == {"box/a", "box/b"}
    assert "SlowDown" in str(failed["box/a"])
