"""Ranks of which some have no keys. Every function here runs in a process of its own."""

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf import Encrypt, PrivateKey, SigningKey, ZStandard
from tests.dcp.helpers import KEY, full_chain, rewrite_index

from .once_ranks import LAYOUTS, Changing, blank, counted, differing, matrices, same, spread, values


def saved(folder: Path, name: str, state: dict[str, Any]) -> Path:
    path = folder / name
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, _extensions=full_chain()))
    return path


def keys_of(keyless: tuple[int, ...]) -> Any:
    return None if dist.get_rank() in keyless else KEY


def refusal(
    path: Path, state: dict[str, Any], *, read: Any = "once", planner: Any = None, no_dist: bool = False, **options: Any
) -> list[str]:
    """What the ranks fail with; empty if the load succeeds."""
    reader = streamxf.FileSystemReader(path, read=read, **options)
    try:
        dcp.load(state, storage_reader=reader, planner=planner, no_dist=no_dist)
    except CheckpointException as error:
        return sorted({f"{type(each).__name__}: {each}" for each, _ in error.failures.values()})
    return []


def tensors(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def loads(folder: Path) -> Any:
    """What ranks without keys get is right, and they read nothing."""
    state, found = values(), dict[str, Any]()
    state["nested"] = {"list": [1, 2, "x" * 3_000_000]}  # of several blocks
    path = saved(folder, "loads", state)
    for name, keyless, wanted in [
        ("two", (1, 2), state),
        ("all but one", (1, 2, 3), state),
        ("coordinator", (0, 3), tensors(state)),
    ]:
        target = blank(wanted) | ({"nested": {"list": [0, 0, 0]}} if "nested" in wanted else {})
        reader = streamxf.FileSystemReader(path, keys=keys_of(keyless), read="once")
        with counted(path) as ratio:
            dcp.load(target, storage_reader=reader)
            read = ratio()
        assert reader.report is not None
        own = reader.report.stored_bytes if dist.get_rank() in keyless else 0
        found[name] = [same(target, wanted), reader.report.read, own, read]
    return found


def sharded(folder: Path) -> Any:
    """Also parts of a chunk that no rank with keys needs, if one of them needs another part of it."""
    found: dict[str, Any] = {}
    for before in ("replicas", "hybrid"):
        shape, placements = LAYOUTS[before]
        path = saved(folder, before, spread(matrices(), shape, placements))
        for after, keyless in [("rows", (1, 2, 3)), ("columns", (2,)), ("hybrid", (2, 3)), ("grid", (0, 1))]:
            shape, placements = LAYOUTS[after]
            state, wanted = spread(matrices(6), shape, placements), spread(matrices(), shape, placements)
            problem = refusal(path, state, keys=keys_of(keyless))
            found[f"{before} to {after}"] = [problem, differing(state, wanted)]
    return found


def refused(folder: Path) -> Any:
    """Loads that end in an error on all ranks."""
    rank, state = dist.get_rank(), values()
    path = saved(
        folder, "refused", state | {f"of {rank}": torch.full((1000,), rank), f"object of {rank}": rank, "set": {rank}}
    )
    found: dict[str, Any] = {}
    some, none = keys_of((1, 2)), keys_of((0, 1, 2, 3))
    found["its own tensor"] = refusal(path, blank(state) | {f"of {rank}": torch.zeros(1000)}, keys=some)
    found["its own object"] = refusal(path, blank(state) | {f"object of {rank}": 0}, keys=some)
    found["nobody has keys"] = refusal(path, blank(state), keys=none)
    found["coordinator and objects"] = refusal(path, blank(state) | {"set": set()}, keys=keys_of((0,)))
    found["rank 3 has each"] = refusal(path, blank(state), keys=some, read="each" if rank == 3 else "once")
    found["rank 0 has each"] = refusal(path, blank(state), keys=some, read="each" if rank == 0 else "once")
    found["each"] = refusal(path, blank(state), keys=some, read="each")
    if rank == 2:
        found["alone"] = refusal(path, blank(state), keys=None, no_dist=True)
    dist.barrier()
    found["changed plan"] = refusal(path, blank(state), keys=some, planner=Changing(rank == 0))
    return found


def altered(folder: Path) -> Any:
    """A rank without keys is shown metadata that somebody has altered, and who has the same keys."""
    rank, state = dist.get_rank(), values()
    path = saved(folder, "right", state)
    if rank == 0:
        shutil.copytree(path, folder / "altered")

        def note(index: Any) -> None:
            index["extra"] = {"a note": "of somebody else"}

        rewrite_index(folder / "altered", note)
    dist.barrier()
    mine = folder / "altered" if rank == 1 else path
    return {
        "keyless": refusal(mine, blank(state), keys=keys_of((1,))),
        "right": refusal(path, blank(state), keys=keys_of((1,))),
    }


def signed(folder: Path) -> Any:
    """Ranks that read for others trust the same signers, and whoever has no keys trusts them."""
    rank, state = dist.get_rank(), values()
    private = PrivateKey(bytes(range(2, 34)), "hpke-x25519")
    signer, other = (SigningKey(bytes(range(n, n + 32))) for n in (3, 4))
    path = folder / "signed"
    dcp.save(
        state, storage_writer=streamxf.FileSystemWriter(path, _extensions=[Encrypt(private.public, signer=signer)])
    )
    more = [signer.verify_key, other.verify_key]
    found = {}
    for name, of_rank_1 in {
        "more": {"keys": private, "trust": more},
        "unsigned": {"keys": private, "allow_unsigned": True},
        "encrypted": {"keys": private, "trust": signer.verify_key, "require": "encrypted"},
        "none": {},
        "same": {"keys": private, "trust": signer.verify_key},
    }.items():
        options: dict[str, Any] = of_rank_1 if rank == 1 else {"keys": private, "trust": signer.verify_key}
        target = blank(state)
        found[name] = [refusal(path, target, **options), same(target, state)]
    return found


def managed(folder: Path) -> Any:
    """Every rank can encrypt and sign, and rank 0 alone decrypt."""
    rank, state, target = dist.get_rank(), values(), blank(values())
    private = PrivateKey(bytes(range(2, 34)), "hpke-x25519")
    chain = [ZStandard(), Encrypt(private.public, signer=SigningKey(bytes(range(3, 35))))]
    keys, found = private if rank == 0 else None, dict[str, Any]()
    with streamxf.CheckpointManager(folder / "run", chain, keys=keys, reader={"read": "once"}) as manager:
        manager.save(3, state)
        found["manager"] = [manager.resume(target), same(target, state)]
    target = blank(state)
    with streamxf.install(chain, keys=keys, reader={"read": "once"}):
        dcp.load(target, checkpoint_id=manager.path(3))
        found["install"] = same(target, state)
    return found
