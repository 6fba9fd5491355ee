"""What a reader does to read once: what its plans carry from rank to rank, and the shared part of a load."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
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
from streamxf.storage.storage import Storage
from streamxf.torch_private import default_store
from streamxf.torchsave.writing import prefix_of
from streamxf.wording import some

CARRIED = "streamxf_once"  # an attribute of plans: `Facts` on their way to the coordinator, a share or a reason back


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
        as_stored = part.chunk is None and not ranks & keyless
        if part.chunk is None:
            size = part.place.size if as_stored else _size(part, opener, storage)
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
            raise KeyMissingError(f"rank {rank} has no keys, and no other rank can read this for it", item=key[0])
        alone[rank] += stored if key not in shards else 0
    block = 1
    if shards:
        part = max((part for _, part in shards.values()), key=lambda part: part.place.size)
        with suppress(StreamxfError, OSError), storage.open(part.place.file) as file:  # whoever reads it is told
            block = opener.open(file, part).block_size
    hosts, tokens = [each.host for each in facts], [each.token for each in facts]
    return assign([(shard, part.place) for shard, part in shards.values()], hosts, tokens, alone, block, keyless)


def _size(part: ItemPart, opener: ItemOpener, storage: Storage) -> int:
    """How many bytes an object has, which the metadata does not say."""
    if opener.metadata.keyless:
        raise locked(opener.metadata, "the coordinator needs keys, too, where there are objects")
    with located(file=storage.label(part.place.file), item=part.item.name), storage.open(part.place.file) as file:
        return opener.open(file, part).size


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
