"""`chain_handlers`: PyTrees that orbax saves become checkpoints of streamxf."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from torch.distributed.checkpoint import state_dict_saver as dcp

from streamxf.chain import ChainLike
from streamxf.checkpoint.access import access_for, chain_and_ring
from streamxf.checkpoint.checkpoint import Checkpoint, ObjectHandle, TensorHandle, as_torch
from streamxf.checkpoint.storage import Storage, is_url
from streamxf.dcp.writer import FileSystemWriter
from streamxf.errors import MetadataError, ParameterError, UnsupportedError
from streamxf.format.items import ITEMSIZES
from streamxf.keys import KeysLike


class ChainHandler(ocp.AsyncCheckpointHandler):  # type: ignore[misc]  # orbax is not there when types are checked
    """Stores each array of a PyTree as a tensor and each other leaf as an object; `chain_handlers` has more."""

    def __init__(self, chain: ChainLike | None = None, *, keys: KeysLike = None) -> None:
        self._chain, ring = chain_and_ring(chain, "floatzip", keys)
        self._access = access_for(self._chain, ring)

    async def async_save(self, directory: Any, args: Any) -> list[Any]:
        return [self._begin(str(directory), _only_item(args))]

    def save(self, directory: Any, args: Any) -> None:
        self._begin(str(directory), _only_item(args)).result()

    def _begin(self, folder: str, tree: Any) -> Any:
        """Write in a thread; raises at once if the tree cannot be saved."""
        if jax.process_count() > 1 or is_url(folder):
            raise UnsupportedError("streamxf.orbax saves from a single process to local folders, nothing else")
        # copies: the caller may donate its arrays to the next step
        state = {name: _stored(name, leaf) for name, leaf in _named(tree)[0].items()}

        async def write() -> None:
            dcp.save(state, storage_writer=FileSystemWriter(folder, chain=self._chain), no_dist=True)

        return ocp.future.CommitFutureAwaitingContractedSignals(write(), name="streamxf")

    def restore(self, directory: Any, args: Any = None) -> Any:
        """Restore what `args.item` wants, an array as it is sharded there; without it all, as nested dicts."""
        target = None if args is None else _only_item(args)
        with Checkpoint.at(Storage.of(str(directory)), self._access) as checkpoint:
            if target is None:
                return _nested({name: checkpoint[name].read() for name in checkpoint})
            wanted, structure = _named(target)
            for name in wanted:
                if name not in checkpoint:
                    raise MetadataError("the checkpoint has no such item", item=name)
            return structure.unflatten([_restored(checkpoint[name], leaf) for name, leaf in wanted.items()])


@ocp.args.register_with_handler(ChainHandler, for_save=True)
class ChainSave(ocp.args.StandardSave):  # type: ignore[misc]
    """By which orbax finds the handler; `StandardSave` does the same."""


@ocp.args.register_with_handler(ChainHandler, for_restore=True)
class ChainRestore(ocp.args.StandardRestore):  # type: ignore[misc]
    """With which orbax restores when it is given no arguments; `StandardRestore` does the same."""


def chain_handlers(chain: ChainLike | None = None, *, keys: KeysLike = None) -> Any:
    """What makes orbax store PyTrees through a chain: ``CheckpointManager(folder, handler_registry=chain_handlers())``.

    Saves and restores by ``StandardSave``, ``StandardRestore``, ``PyTreeSave`` and ``PyTreeRestore`` need no change. An
    item's folder then holds a checkpoint that `streamxf.Checkpoint` and all tools read.

    Parameters
    ----------
    chain : Chain, codecs or str
        As in `FileSystemWriter`; the default is ``[FloatZip()]``.
    keys : Key, location, several of them or a KeyRing
        The key for ``encrypt`` in a chain's text form, and for restoring; by default those of the chain that can read.
        If the chain encrypts, what is not encrypted is refused.

    Raises
    ------
    ChainError, ParameterError
        If the arguments do not fit.
    """
    handler = ChainHandler(chain, keys=keys)
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    for name in "StandardSave", "StandardRestore", "PyTreeSave", "PyTreeRestore":
        registry.add(None, getattr(ocp.args, name), handler)
    registry.add(None, ChainSave, handler)
    registry.add(None, ChainRestore, handler)
    return registry


def _only_item(args: Any) -> Any:
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        if field.name != "item" and value is not None and value != field.default:
            raise ParameterError(f"streamxf.orbax takes no {field.name}=")
    return args.item


def _named(tree: Any) -> tuple[dict[str, Any], Any]:
    """The leaves by their names, and the structure without them."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
    if len(named) != len(leaves) or "" in named:
        raise ParameterError("streamxf.orbax saves trees, whose leaves have names, and no two the same")
    return named, structure


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for name, value in flat.items():
        *outer, last = name.split("/")
        node = root
        for step in outer:
            node = node.setdefault(step, {})
        node[last] = value
    return root


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # type: ignore[no-any-return]


def _stored(name: str, leaf: Any) -> Any:
    if not hasattr(leaf, "dtype"):
        return leaf
    array = np.array(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    if array.dtype.name not in ITEMSIZES:
        raise UnsupportedError(f"streamxf.orbax does not save dtype {array.dtype}", item=name)
    return as_torch(array, array.dtype.name)


def _restored(stored: TensorHandle | ObjectHandle, leaf: Any) -> Any:
    if isinstance(stored, ObjectHandle) or not hasattr(leaf, "dtype"):
        return stored.read()
    if _is_key(leaf):
        key = jax.random.wrap_key_data(
            stored.read(), impl=jax.random.key_impl(leaf) if isinstance(leaf, jax.Array) else None
        )
        if key.dtype != leaf.dtype:
            raise UnsupportedError(f"restored as {key.dtype}, wanted as {leaf.dtype}: give a key, not its shape")
        return key
    if stored.shape != leaf.shape:
        raise MetadataError(f"stored with shape {[*stored.shape]}, wanted with {[*leaf.shape]}", item=stored.name)
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return np.asarray(stored[...], dtype=leaf.dtype)

    def part(index: tuple[slice, ...]) -> Any:
        return np.asarray(stored[index], dtype=leaf.dtype)

    return jax.make_array_from_callback(leaf.shape, sharding, part)
