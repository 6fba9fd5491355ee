"""`chain_handlers`: PyTrees that orbax saves become checkpoints; the tree without leaves is what a planner adds."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from streamxf.chain import Chains
from streamxf.checkpoint.checkpoint import Checkpoint, ObjectHandle, TensorHandle
from streamxf.checkpoint.writer import CheckpointWriter
from streamxf.errors import MetadataError, ParameterError, UnsupportedError
from streamxf.keys import KeyRing
from streamxf.places import GLOBAL, is_url, open_storage
from streamxf.reading import Access, ChainsLike, KeysLike, TensorItem
from streamxf.wording import some

_STOCK = "_METADATA"  # the tree of what orbax itself has saved
_TREE = "orbax_tree"  # an attribute of DCP's metadata


class ChainHandler(ocp.AsyncCheckpointHandler):  # type: ignore[misc]  # orbax is not there when types are checked
    """Stores each array of a PyTree as a tensor and each other leaf as an object; `chain_handlers` has more."""

    def __init__(self, chain: ChainsLike | None = None, *, keys: KeysLike = None) -> None:
        ring = None if keys is None else KeyRing.of(keys)  # looked up once: one may ask for a passphrase
        self._chain = Chains.chosen(chain, keys=ring)
        self._access = Access.for_chain(self._chain.default, ring)

    async def async_save(self, directory: Any, args: Any) -> list[Any]:
        return [self._begin(str(directory), _only_item(args))]

    def save(self, directory: Any, args: Any) -> None:
        self._begin(str(directory), _only_item(args)).result()

    def _begin(self, folder: str, tree: Any) -> Any:
        """Write in a thread; raises at once if the tree cannot be saved."""
        if jax.process_count() > 1 or is_url(folder):
            raise UnsupportedError(
                "streamxf.integrations.orbax saves from a single process to local folders, nothing else"
            )
        # copies: the caller may donate its arrays to the next step
        state = {name: _stored(name, leaf) for name, leaf in _named(tree)[0].items()}
        writer = CheckpointWriter(folder, self._chain, overwrite=True, extra={_TREE: _outline(tree)})

        async def write() -> None:
            with writer:
                for name, leaf in state.items():
                    writer.add(name, leaf, copy=False)

        return ocp.future.CommitFutureAwaitingContractedSignals(write(), name="streamxf")

    def restore(self, directory: Any, args: Any = None) -> Any:
        """Restore what `args.item` wants, an array as it is sharded there; without it all, as nested dicts, lists and
        tuples. What orbax itself has saved is restored by orbax, unless the chain encrypts.
        """
        if os.path.exists(f"{directory}/{_STOCK}") and not os.path.exists(f"{directory}/{GLOBAL}"):
            self._access.refuse_bare("the checkpoint")
            stock = "PyTree" if isinstance(args, ocp.args.PyTreeRestore) else "Standard"
            given = getattr(ocp.args, f"{stock}Restore")() if type(args) in (type(None), ChainRestore) else args
            return getattr(ocp, f"{stock}CheckpointHandler")().restore(directory, args=given)
        partial = getattr(args, "partial_restore", False)
        target = None if args is None else _only_item(args)
        with Checkpoint.at(open_storage(str(directory)), self._access) as checkpoint:
            if target is None:
                return _whole(checkpoint)
            wanted, structure = _named(target)
            if lacking := wanted.keys() - {*checkpoint}:
                raise ParameterError(f"the target has leaves that the checkpoint lacks: {some(sorted(lacking))}")
            if not partial and (left := {*checkpoint} - wanted.keys()):
                raise ParameterError(
                    f"the checkpoint has leaves that the target lacks: {some(sorted(left))}; if that is meant, "
                    "restore with PyTreeRestore(target, partial_restore=True)"
                )
            return structure.unflatten([_restored(checkpoint[name], leaf) for name, leaf in wanted.items()])


@ocp.args.register_with_handler(ChainHandler, for_save=True)
class ChainSave(ocp.args.StandardSave):  # type: ignore[misc]
    """By which orbax finds the handler; `StandardSave` does the same."""


@ocp.args.register_with_handler(ChainHandler, for_restore=True)
class ChainRestore(ocp.args.StandardRestore):  # type: ignore[misc]
    """With which orbax restores when it is given no arguments; `StandardRestore` does the same."""


def chain_handlers(chain: ChainsLike | None = None, *, keys: KeysLike = None) -> Any:
    """Handlers by which orbax stores PyTrees through a chain: ``CheckpointManager(folder, handler_registry=...)``.

    Saves and restores by ``StandardSave``, ``StandardRestore``, ``PyTreeSave`` and ``PyTreeRestore`` need no change. An
    item's folder then holds a checkpoint that `streamxf.Checkpoint` and all tools read.

    Parameters
    ----------
    chain : Chain, codecs or str
        As in `FileSystemWriter`; the default is ``[FloatZip()]``.
    keys : Key, location, several of them or a KeyRing
        The key for ``encrypt`` in a chain's text form, and for restoring; by default those of the chain that can read.
        If the chain encrypts, unencrypted checkpoints are refused.

    Raises ChainError, ParameterError if the arguments do not fit.
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
        if field.name not in ("item", "partial_restore") and value is not None and value != field.default:
            raise ParameterError(f"streamxf.integrations.orbax takes no {field.name}=")
    return args.item


def _named(tree: Any) -> tuple[dict[str, Any], Any]:
    """The leaves by their names, and the structure without them."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
    if len(named) != len(leaves) or "" in named:
        raise ParameterError("streamxf.integrations.orbax saves trees, whose leaves have names, and no two the same")
    return named, structure


def _outline(node: Any, path: tuple[Any, ...] = ()) -> Any:
    """A tree with its leaves' names in their place, of None, lists, tuples, and dicts for anything else."""
    if node is None:
        return None
    children, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda each: each is not node)
    if children and children[0][0] == ():
        return jax.tree_util.keystr(path, simple=True, separator="/")
    inner = [(key, _outline(child, (*path, *key))) for key, child in children]
    if type(node) in (list, tuple):
        return type(node)(each for _, each in inner)
    if not inner and not isinstance(node, dict):  # as orbax restores optax's EmptyState, say
        return None
    return {jax.tree_util.keystr(key, simple=True): each for key, each in inner}


def _whole(checkpoint: Checkpoint) -> Any:
    if _TREE not in (extra := checkpoint.extra):
        raise ParameterError("the checkpoint does not say of which tree its items are leaves: give a target")

    def read(node: Any) -> Any:
        if node is None:
            return None
        if isinstance(node, dict):
            return {name: read(each) for name, each in node.items()}
        if isinstance(node, list | tuple):
            return type(node)(map(read, node))
        if node not in checkpoint:
            raise MetadataError(f"the tree in the metadata has a leaf that is not in the checkpoint: {node!r:.80}")
        return checkpoint[node].read()

    return read(extra[_TREE])


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # type: ignore[no-any-return]


def _stored(name: str, leaf: Any) -> Any:
    if not hasattr(leaf, "dtype"):
        return leaf
    array = np.array(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    if not TensorItem(name, array.dtype.name, array.shape, ()).fits_numpy:
        raise UnsupportedError(f"streamxf.integrations.orbax does not save dtype {array.dtype}", item=name)
    return array


def _restored(stored: TensorHandle | ObjectHandle, leaf: Any) -> Any:
    if leaf is ocp.PLACEHOLDER:  # a leaf to leave out
        return leaf
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
        raise ParameterError(f"stored with shape {[*stored.shape]}, wanted with {[*leaf.shape]}", item=stored.name)
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return np.asarray(stored[...], dtype=leaf.dtype)

    def part(index: tuple[slice, ...]) -> Any:
        return np.asarray(stored[index], dtype=leaf.dtype)

    return jax.make_array_from_callback(leaf.shape, sharding, part)
