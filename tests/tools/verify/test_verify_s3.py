"""`verify` on a real S3 server, which the tests start on loopback."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, Encrypt, FloatZip
from streamxf.errors import StreamxfError
from streamxf.tools.verify.reading import GuardedAccess
from streamxf.tools.verify.report import VerifyReport
from tests.dcp.fsspec_checks import fsspec_files
from tests.dcp.helpers import KEY
from tests.dcp.s3_server import serving, storage

pytestmark = [pytest.mark.s3, pytest.mark.slow]

FILES = 3


class Saved:
    """A checkpoint of three files on the server; one of its tensors is larger than what is fetched at a time."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.url, self.options = url, options
        generator = torch.Generator().manual_seed(4)
        sizes = {"large": 2_600_000, **{f"w{number}": 300_000 + number for number in range(5)}}
        state: dict[str, Any] = {name: torch.randn(size, generator=generator) for name, size in sizes.items()}
        chain = [FloatZip(), Checksum(), Encrypt(KEY)]
        writer = streamxf.FsspecWriter(url, thread_count=FILES, _extensions=chain, **options)
        dcp.save({**state, "o": ["an object"]}, storage_writer=writer)

    def verify(self, keys: Any = KEY, **options: Any) -> VerifyReport:
        return streamxf.verify(self.url, keys=keys, storage_options={**self.options, **options})


def test_whole_with_the_key_and_without(endpoint: str) -> None:
    saved = Saved("s3://checkpoints/verify/whole", storage(endpoint))
    stored = fsspec_files(saved.url, saved.options)
    for keys in (KEY, None):
        report = saved.verify(keys)
        assert report.ok, report
        assert (report.files, report.items) == (FILES, 7)
        assert report.bytes_read == sum(stored.values())


def test_a_server_that_refuses_or_dies(tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    once = {"config_kwargs": {"retries": {"max_attempts": 0}}}
    with ExitStack() as server:
        saved = Saved("s3://checkpoints/verify/dies", storage(server.enter_context(serving(tmp_path))))
        assert saved.options["endpoint_url"] != endpoint
        with pytest.raises((OSError, StreamxfError)):
            saved.verify(secret="wrong")
        read = GuardedAccess.read_into

        def dying(file: GuardedAccess, position: int, out: memoryview) -> int:
            server.close()
            return read(file, position, out)

        monkeypatch.setattr(GuardedAccess, "read_into", dying)
        report = saved.verify(**once)
        assert not report.ok
        assert {damage.error for damage in report.damaged if damage.item is None} <= {"ForeignError", "OSError"}
        monkeypatch.undo()
        with pytest.raises((OSError, StreamxfError)):
            saved.verify(**once)
