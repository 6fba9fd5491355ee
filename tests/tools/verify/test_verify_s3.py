"""`verify` on a real S3 server, which the tests start on loopback."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, Encrypt, FloatZip
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import read_metadata
from streamxf.errors import StreamxfError
from streamxf.format.items import Place
from streamxf.storage.opening import open_storage
from streamxf.tools.verify.reading import GuardedAccess
from streamxf.tools.verify.report import VerifyReport
from tests.dcp.fsspec_checks import fsspec_files
from tests.dcp.helpers import KEY
from tests.dcp.s3_server import serving, storage
from tests.forge import Places

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

    def place_of(self, item: str) -> Place:
        storage = open_storage(self.url, self.options)
        return read_metadata(storage, ".metadata", Access(), listing=True).items[item].places[0]


def test_whole_with_the_key_and_without(endpoint: str) -> None:
    saved = Saved("s3://checkpoints/verify/whole", storage(endpoint))
    stored = fsspec_files(saved.url, saved.options)
    for keys in (KEY, None):
        report = saved.verify(keys)
        assert report.ok, report
        assert (report.files, report.items) == (FILES, 7)
        assert report.bytes_read == sum(stored.values())


def test_flipped_bits_are_named_by_item_and_block(endpoint: str) -> None:
    import s3fs

    saved = Saved("s3://checkpoints/verify/flipped", storage(endpoint))
    filesystem = s3fs.S3FileSystem(**saved.options)
    for item, block in (("large", 7), ("w3", 0)):
        place = saved.place_of(item)
        path = f"{saved.url}/{place.file}"
        whole = filesystem.cat_file(path)
        places = Places.of(whole[place.at : place.at + place.size])
        damaged = bytearray(whole)
        damaged[place.at + places.blocks[block][1] - 1] ^= 1
        filesystem.pipe_file(path, bytes(damaged))
        for keys in (KEY, None):
            found = [(damage.item, damage.block, damage.error) for damage in saved.verify(keys).damaged]
            assert found == [(item, block, "BlockError")]
        filesystem.pipe_file(path, whole)
    filesystem.rm_file(path)
    assert {damage.file for damage in saved.verify().damaged} == {place.file}


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
