"""What a reader does to read once: what its plans carry from rank to rank, and the shared part of a load; and metadata
in an object store, which one rank of each host reads: the first there also reads for those that come later.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.elements import Selection
from streamxf.checkpoint.metadata import Metadata
from streamxf.checkpoint.opening import ItemOpener, ItemPart
from streamxf.dcp.loader import Loader, part_of, stored_bytes
from streamxf.dcp.once.meeting import Meeting, announce
from streamxf.dcp.once.plan import Assignment, Need, SharedChunk, assign
from streamxf.dcp.once.transfer import Transfer, box_of
from streamxf.errors import KeyMissingError, MetadataError, ParameterError, StreamxfError, located
from streamxf.format.items import ITEMSIZES
from streamxf.keys.envelope import Envelope
from streamxf.progress import Progress
from streamxf.storage.reading import Span, StoredFile
from streamxf.storage.storage import Storage
from streamxf.torch_private import default_store
from streamxf.torchsave.writing import prefix_of
from streamxf.wording import some

CARRIED = "streamxf_once"  # an attribute of plans: `Facts` on their way to the coordinator, a share or a reason back
_PATIENCE = 6.0  # seconds in which an answer has to go on
_REQUEST = struct.Struct("<32sQQ")  # digest, position, size


class Facts(NamedTuple):
    """What the coordinator has to know of a rank.

    - `token`: drawn by the rank for this load.
    - `terms`: on which it reads. `names`: those that it gives to items.
    - `doubt`: why it cannot read once.
    - `digest`: what the vouchers of its metadata are made for.
    - `keyless`: whether it has no keys for it, so that the digest is all that speaks for the metadata.
    """

    token: str
    host: str
    terms: str
    names: str
    doubt: str
    digest: bytes
    keyless: bool

    @classmethod
    def of(cls, metadata: Metadata, access: Access) -> Facts:
        doubt = ""
        if not dist.is_available() or not dist.is_initialized():
            doubt = "torch.distributed is not initialized"
        elif not dist.is_gloo_available() or default_store() is None:
            doubt = "this torch has no gloo, or the job no store"
        elif metadata.index is None or metadata.rank is not None:
            doubt = "the metadata is a single rank's, or of another writer"
        trust, renaming = sorted(key.id for key in access.trust), access.renaming
        terms = f"require={access.require!r}, trust={trust}, allow_unsigned={access.keys.allow_unsigned}"
        names, keyless = f"rename={renaming.given if renaming else None}", metadata.keyless
        return cls(secrets.token_hex(16), socket.gethostname(), terms, names, doubt, metadata.digest, keyless)


def locked(metadata: Metadata, reason: str) -> KeyMissingError:
    """What a rank without keys fails with."""
    why = Envelope.parse(metadata.wrapped).missing(()).message
    return KeyMissingError(f"this checkpoint is {why}. No rank reads it for those without keys: {reason}")


def with_shares(plans: Sequence[LoadPlan], opener: ItemOpener, storage: Storage) -> None:
    """On the coordinator: give each rank its share, or the reason why there is none. Raises ParameterError if the ranks
    read on different terms; if some of them have no keys, KeyMissingError if the others do not read all that these
    need, MetadataError if not all have found the same metadata.
    """
    found: list[Facts | None] = [vars(plan).pop(CARRIED, None) for plan in plans]
    known = [facts for facts in found if facts is not None]
    reason, shares = next((facts.doubt for facts in known if facts.doubt), ""), dict[int, Assignment]()
    if lacking := [str(rank) for rank, facts in enumerate(found) if facts is None]:
        reason = f"ranks without read='once', or a planner that makes new plans: {some(lacking, most=8)}"
    elif len(known) == 1:
        reason = reason or "one rank loads alone"
    if any(facts.keyless for facts in known):
        if len({facts.digest for facts in known}) > 1:
            raise MetadataError("the ranks found different metadata, and those without keys cannot tell which is right")
        if all(facts.keyless for facts in known):
            reason = reason or "none has keys"
        if reason:
            raise locked(opener.metadata, reason)
    if not reason:
        owners = [(rank, facts) for rank, facts in enumerate(known) if not facts.keyless]
        _check_same((rank, facts.terms) for rank, facts in owners)
        _check_same((rank, facts.names) for rank, facts in enumerate(known))
        shares = _shares(plans, known, opener, storage)
        reason = "other ranks need nothing that this one needs"
        reason = reason if shares else "less than 5% of the bytes are needed by several ranks"
    for rank, plan in enumerate(plans):
        vars(plan)[CARRIED] = shares.get(rank, reason)


def _check_same(terms: Iterable[tuple[int, str]]) -> None:
    found = {text: rank for rank, text in reversed([*terms])}
    if len(found) > 1:
        shown = some((f"rank {rank} has {text}" for text, rank in found.items()), most=4)
        raise ParameterError(f"ranks that read for each other need the same terms: {shown}")


def _shares(
    plans: Sequence[LoadPlan], facts: Sequence[Facts], opener: ItemOpener, storage: Storage
) -> dict[int, Assignment]:
    keyless = {rank for rank, each in enumerate(facts) if each.keyless}
    wanted: dict[Any, tuple[ItemPart, dict[Any, dict[int, None]]]] = {}
    asked: list[tuple[int, Any, float]] = []
    for rank, plan in enumerate(plans):
        for request in plan.items:
            part = part_of(opener.metadata, request)
            key, box = box_of(request)
            asked.append((rank, key, stored_bytes(request, part)))
            known = part.chunk is None or getattr(part.item, "dtype", "") in ITEMSIZES
            if known and all(text[0] != "!" for text in part.place.descriptors):
                wanted.setdefault(key, (part, {}))[1].setdefault(box, {})[rank] = None
    shards: dict[Any, tuple[SharedChunk, ItemPart]] = {}
    for key, (part, boxes) in wanted.items():
        ranks = {rank for each in boxes.values() for rank in each}
        if len(ranks) == 1 and not ranks & keyless:
            continue
        span = part.place.span  # of a value, which nobody unpickles
        as_stored = part.chunk is None and span is None and not ranks & keyless
        if part.chunk is None:
            size = part.place.size if as_stored else span[1] - span[0] if span else _size(part, opener, storage)
            boxes = {((0, size),): dict.fromkeys(sorted(ranks))}
        shape = (size,) if part.chunk is None else part.chunk.shape
        needs = list[Need]()
        for box, own in boxes.items():
            if selection := Selection.of(shape, [a for a, _ in box], [b - a for a, b in box]):
                needs.append(Need(selection, (*own,)))
        if len(needs) == len(boxes):  # or one is not inside of the chunk, which the read says
            dtype = getattr(part.item, "dtype", "")
            lead = len(prefix_of(dtype, shape)) if part.chunk is not None and part.chunk.framed else 0
            shards[key] = SharedChunk(key[0], key[1], shape, dtype, (*needs,), as_stored, lead), part
    alone = [0.0] * len(plans)
    for rank, key, stored in asked:
        if rank in keyless and key not in shards:
            raise KeyMissingError(
                f"rank {rank} cannot decrypt this, and no rank with a key can read it for it", item=key[0]
            )
        alone[rank] += stored if key not in shards else 0
    block = 1
    if shards:
        part = max((part for _, part in shards.values()), key=lambda part: part.place.size)
        with suppress(StreamxfError, OSError), storage.open(part.place.file) as file:  # whoever reads it is told
            block = opener.blocks(opener.source(file, part.place), part).block_size
    hosts, tokens = [each.host for each in facts], [each.token for each in facts]
    return assign([(shard, part.place) for shard, part in shards.values()], hosts, tokens, alone, block, keyless)


def _size(part: ItemPart, opener: ItemOpener, storage: Storage) -> int:
    """How many bytes an object has, which the metadata does not say."""
    if opener.metadata.keyless:
        raise locked(opener.metadata, "the coordinator needs keys, too, where there are objects")
    with located(file=storage.label(part.place.file), item=part.item.name), storage.open(part.place.file) as file:
        return opener.blocks(opener.source(file, part.place), part).size


def read_once(
    plan: LoadPlan, facts: Facts, loader: Loader, planner: LoadPlanner, storage: Storage, progress: Progress | None
) -> Transfer | str:
    """Read this rank's share, if the plan carries one and all ranks of the group are there; else why not. Raises what
    went wrong on any of them, and KeyMissingError if this one cannot do without.
    """
    share = vars(plan).pop(CARRIED, None)
    if isinstance(share, str):
        reason = share
    elif isinstance(share, Assignment) and share.tokens[share.ranks.index(share.rank)] == facts.token:
        meeting, transfer = Meeting(share), Transfer(share, loader, planner)
        doubt, failure = "", None
        try:
            doubt = transfer.prepare(plan.items)
        except BaseException as error:
            failure = error
        if not (reason := meeting.decide(doubt, failure)):
            try:
                meeting.connect()
                transfer.run(storage, meeting, progress)
                meeting.finish()
            except BaseException as error:
                first = meeting.fail(error)
                if first is error:
                    raise
                raise first from None
            return transfer
    else:
        reason = "rank 0 has read='each'" if isinstance(share, Facts) else "finish_plan has replaced a plan"
        if not facts.doubt:
            announce(facts.token, reason)  # others may have a share in this load
    if facts.keyless and plan.items:
        raise locked(loader.opener.metadata, reason)
    return reason


class SharedFile:
    """What `file` is read through from now on: directly, or by the process that serves it, which may be this one. It is
    shared with processes of this user that have seen the digest of its trailer, `until` that is closed. Only Linux has
    sockets that nothing remains of when a process is killed.

    A reader learns who loads with it in DCP's first collective, and needs metadata before. So nobody waits for ranks
    that may never come: who finds another at work asks it, and reads by itself where that fails or takes long. They
    meet at a socket named after that digest, which each has read, and which all else can be checked against.
    """

    def __init__(self, until: ExitStack, file: StoredFile, digest: bytes) -> None:
        self._direct, self._size, self._digest = file.access, file.size, digest
        self.parallel = self._direct.parallel
        file.access = self
        until.callback(self.close)
        self._pid = 0  # with which it is shared: a fork has none of the threads, and must not use the sockets
        self._lock = threading.Lock()
        self._asked: socket.socket | None = None
        self._sockets: list[socket.socket] = []
        self._found: dict[tuple[int, int], bytes] = {}
        if sys.platform != "linux":
            return
        who = f"{os.getuid()} {socket.gethostname()} ".encode() + digest
        name = b"\0streamxf-" + hashlib.sha256(who).hexdigest().encode()
        for _ in range(3):  # another may come or go meanwhile
            made = socket.socket(socket.AF_UNIX)
            self._sockets.append(made)
            with suppress(OSError, RuntimeError):  # the last at the system's limit on threads
                made.bind(name)
                made.listen(128)
                self._start(self._accept, made)
                self._pid = os.getpid()
                return
            made.settimeout(_PATIENCE)
            with suppress(OSError):
                made.connect(name)
                self._asked, self._pid = made, os.getpid()
                return

    def expect(self, *spans: Span) -> None:
        """It is not known who will read them."""

    def read_into(self, position: int, out: memoryview) -> int:
        if self._pid != os.getpid():
            return self._direct.read_into(position, out)
        if self._asked is None:
            data = self._read(position, len(out))
            out[: len(data)] = data
            return len(data)
        with self._lock:
            pid, self._pid = self._pid, 0  # until the answer is there: a late one must not pass for another
            with suppress(OSError):
                self._asked.sendall(_REQUEST.pack(self._digest, position, len(out)))
                if pid and _is_own(self._asked) and _filled(self._asked, out):
                    self._pid = pid
                    return len(out)
        return self._direct.read_into(position, out)

    def _read(self, position: int, size: int) -> bytes:
        """Read for all who ask, once."""
        with self._lock:
            if (position, size) not in self._found:
                data = bytearray(size)
                self._found[position, size] = bytes(data[: self._direct.read_into(position, memoryview(data))])
            return self._found[position, size]

    def _start(self, how: Callable[[socket.socket], None], made: socket.socket) -> None:
        threading.Thread(target=how, args=(made,), name="streamxf-host", daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError, RuntimeError):  # it was closed; or as above
            while True:
                asking, _ = listening.accept()
                self._sockets.append(asking)
                self._start(self._answer, asking)

    def _answer(self, asking: socket.socket) -> None:
        request = memoryview(bytearray(_REQUEST.size))
        with asking, suppress(Exception):  # of whatever class: who asked meets it, too, when it reads by itself
            while _is_own(asking) and _filled(asking, request):
                digest, position, size = _REQUEST.unpack(request)
                known = hmac.compare_digest(digest, self._digest) and size <= self._size
                if not known or len(data := self._read(position, size)) < size:
                    break
                asking.sendall(data)

    def close(self) -> None:
        """Read directly from now on."""
        self._pid = 0
        while self._sockets:
            with self._sockets.pop() as each, suppress(OSError):  # it is closed already
                each.shutdown(socket.SHUT_RDWR)  # for forks, too; it wakes who waits
        self._found.clear()


def _is_own(other: socket.socket) -> bool:
    """Whether a process of the same user is at the other end."""
    _, user, _ = struct.unpack("3i", other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.getuid())


def _filled(other: socket.socket, out: memoryview) -> bool:
    """Receive as many bytes as there is room for; false if fewer come."""
    while out and (count := other.recv_into(out)):
        out = out[count:]
    return not out
