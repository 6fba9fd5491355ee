"""docs/examples/orbax_manager.py and flax_msgpack.py, killed, damaged and resumed; and what the plug-in saves."""

import sys
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import streamxf
from streamxf.errors import ChainError, MetadataError, ParameterError, PolicyError, UnsupportedError
from tests.dcp.helpers import rewrite_index, stored_chain

from .damaged import assert_falls_back
from .killed import EXAMPLES, assert_managed, assert_resumes, finished

jax = pytest.importorskip("jax")
ocp = pytest.importorskip("orbax.checkpoint")
jnp = jax.numpy

from streamxf.integrations.orbax import ChainHandler, chain_handlers  # noqa: E402 - needs orbax

KEY = streamxf.Key.generate()
CHAIN = "floatzip+checksum+encrypt"


@pytest.mark.slow
@pytest.mark.parametrize("example", ["orbax_manager", "flax_msgpack"])
def test_killed_and_resumed(example: str, tmp_path: Path) -> None:
    pytest.importorskip("flax")
    if example == "flax_msgpack":
        run = assert_managed(tmp_path, [sys.executable], [EXAMPLES / "flax_msgpack.py"])
        assert streamxf.verify(run / "step-12" / "state.msgpack.sxf").ok
    else:
        folder = assert_resumes(tmp_path, [sys.executable, EXAMPLES / "orbax_manager.py"])
        assert {stored_chain(path, None) for path in folder.glob("[0-9]*/default")} == {"floatzip+checksum"}


@pytest.mark.slow
@pytest.mark.parametrize(("example", "files"), [("orbax_manager", "default/*"), ("flax_msgpack", "*.sxf")])
def test_damaged_and_resumed(example: str, files: str, tmp_path: Path) -> None:
    pytest.importorskip("flax")
    assert_falls_back(tmp_path, [sys.executable, EXAMPLES / f"{example}.py"], files)


def manager(folder: Path, **options: Any) -> Any:
    return ocp.CheckpointManager(
        folder, handler_registry=chain_handlers(CHAIN, keys=KEY), options=ocp.CheckpointManagerOptions(**options)
    )


def tree() -> dict[str, Any]:
    return {
        "params": {"w": jnp.arange(4000, dtype=jnp.bfloat16).reshape(8, 500), "layers": [jnp.ones(3), jnp.zeros(())]},
        "host": np.arange(12, dtype=np.int8).reshape(3, 4).T,
        "rng": jax.random.key(7),
        "step": 3,
        "name": "run",
    }


def assert_equal(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        if hasattr(other, "dtype"):
            assert one.dtype == other.dtype
        if hasattr(other, "dtype") and jax.dtypes.issubdtype(other.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        assert np.array_equal(one, other)


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("args", ["Standard", "PyTree"])
def test_saved_and_restored(args: str, background: bool, tmp_path: Path) -> None:
    saver = manager(tmp_path, enable_async_checkpointing=background)
    saver.save(5, args=getattr(ocp.args, f"{args}Save")(tree()))
    saver.close()
    restore = getattr(ocp.args, f"{args}Restore")
    shapes = jax.tree.map(lambda leaf: jax.eval_shape(lambda: leaf) if isinstance(leaf, jax.Array) else leaf, tree())
    for target in tree(), shapes:
        assert_equal(manager(tmp_path).restore(5, args=restore(target)), tree())
    assert stored_chain(tmp_path / "5" / "default", KEY) == CHAIN

    with streamxf.Checkpoint(tmp_path / "5" / "default", keys=KEY) as checkpoint:
        assert checkpoint["params/w"][3, :4].tolist() == tree()["params"]["w"][3, :4].tolist()


class Pair(NamedTuple):
    first: Any
    second: Any


def test_without_a_target_the_tree_is_as_it_was_saved(tmp_path: Path) -> None:
    """But for classes, which become dicts, as orbax has it."""
    plain = {
        "list": [np.ones(3), {"none": None, "scalar": 3}, [], ()],
        "tuple": (np.arange(4), (np.zeros(2),)),
        "empty": {},
        "a/b": [None, "text"],
    }
    saver = manager(tmp_path)
    saver.save(1, args=ocp.args.StandardSave({**plain, "pair": Pair([np.ones(1)], None)}))
    saver.close()
    for args in None, ocp.args.StandardRestore(), ocp.args.PyTreeRestore():
        found = manager(tmp_path).restore(1, args=args)
        assert_equal(found, {**plain, "pair": {"first": [np.ones(1)], "second": None}})


def test_without_a_target_a_tree_must_be_there(tmp_path: Path) -> None:
    saver = manager(tmp_path)
    saver.save(1, args=ocp.args.StandardSave({"w": [np.ones(3)]}))
    saver.close()
    folder = tmp_path / "1" / "default"
    rewrite_index(folder, lambda index: index["extra"].update(orbax_tree={"dict": [["w", ["v/0"]]]}), KEY)
    with pytest.raises(MetadataError, match="'v/0'"):
        manager(tmp_path).restore(1)
    rewrite_index(folder, lambda index: index["extra"].clear(), KEY)
    with pytest.raises(ParameterError, match="give a target"):
        manager(tmp_path).restore(1)
    assert_equal(manager(tmp_path).restore(1, args=ocp.args.StandardRestore({"w": [np.zeros(3)]})), {"w": [np.ones(3)]})


def test_a_target_has_all_leaves_unless_it_is_meant_to_have_less(tmp_path: Path) -> None:
    saver = manager(tmp_path)
    saver.save(1, args=ocp.args.StandardSave(tree()))
    saver.close()
    less = {"step": 0, "params": tree()["params"]}
    for args in ocp.args.StandardRestore(less), ocp.args.PyTreeRestore(less):
        with pytest.raises(ParameterError, match=r"has leaves .*: host, name, rng; .* partial_restore=True"):
            manager(tmp_path).restore(1, args=args)
    found = manager(tmp_path).restore(1, args=ocp.args.PyTreeRestore(less, partial_restore=True))
    assert_equal(found, {**less, "step": 3})
    without = {name: ocp.PLACEHOLDER if name in ("host", "step") else leaf for name, leaf in tree().items()}
    assert_equal(manager(tmp_path).restore(1, args=ocp.args.PyTreeRestore(without)), without)


def test_a_job_that_orbax_has_saved_goes_on_through_a_chain(tmp_path: Path) -> None:
    state = {"w": jnp.arange(1000.0), "layers": [jnp.ones(3)]}
    stock = ocp.CheckpointManager(tmp_path)
    stock.save(1, args=ocp.args.StandardSave(state))
    stock.close()
    chained = ocp.CheckpointManager(tmp_path, handler_registry=chain_handlers("floatzip"))
    assert chained.latest_step() == 1
    for args in None, ocp.args.StandardRestore(state), ocp.args.PyTreeRestore(state), ocp.args.StandardRestore():
        assert_equal(chained.restore(1, args=args), state)
    chained.save(2, args=ocp.args.StandardSave(state))
    chained.wait_until_finished()
    assert stored_chain(tmp_path / "2" / "default", None) == "floatzip"
    chained.close()
    for args in None, ocp.args.StandardRestore(state):
        with pytest.raises(PolicyError, match="not encrypted"):
            manager(tmp_path).restore(1, args=args)


def test_each_device_reads_its_part(tmp_path: Path) -> None:
    """Restored for other devices than it was saved from; the number of devices is that of a process."""
    code = """
import sys
import jax, numpy as np, orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from streamxf.integrations.orbax import chain_handlers
def on(*axes):
    return NamedSharding(Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y")), PartitionSpec(*axes))
values = np.arange(4000.0, dtype=np.float32).reshape(40, 100)
manager = ocp.CheckpointManager(sys.argv[1], handler_registry=chain_handlers())
manager.save(1, args=ocp.args.StandardSave({"w": jax.device_put(values, on("x", "y"))}))
manager.wait_until_finished()
target = {"w": jax.ShapeDtypeStruct((40, 100), np.float32, sharding=on("y"))}
restored = manager.restore(1, args=ocp.args.StandardRestore(target))["w"]
assert restored.sharding == on("y") and np.array_equal(restored, values)
assert {shard.data.shape for shard in restored.addressable_shards} == {(20, 100)}
"""
    finished(
        [sys.executable, "-c", code, tmp_path],
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
        JAX_PLATFORMS="cpu",
    )


def test_donated_arrays_are_saved_as_they_were(tmp_path: Path) -> None:
    saver, values = manager(tmp_path), jnp.arange(1_000_000.0)
    saver.save(1, args=ocp.args.StandardSave({"w": values}))
    jax.jit(lambda w: w * 0, donate_argnums=0)(values).block_until_ready()
    saver.close()
    assert np.array_equal(manager(tmp_path).restore(1)["w"], np.arange(1_000_000.0))


def test_an_error_of_the_background_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr("streamxf.integrations.orbax.CheckpointWriter.add", fail)
    saver = manager(tmp_path)
    saver.save(1, args=ocp.args.StandardSave(tree()))
    with pytest.raises(OSError, match="no room"):
        saver.wait_until_finished()
    assert manager(tmp_path).latest_step() is None


def test_a_chain_that_encrypts_restores_no_plaintext(tmp_path: Path) -> None:
    saver = ocp.CheckpointManager(tmp_path, handler_registry=chain_handlers("floatzip"))
    saver.save(1, args=ocp.args.StandardSave(tree()))
    saver.close()
    public = streamxf.Encrypt(streamxf.PrivateKey.generate().public, signer=streamxf.SigningKey.generate())
    with pytest.raises(PolicyError):
        manager(tmp_path).restore(1)
    for codec in streamxf.Encrypt(KEY), public:
        with pytest.raises(PolicyError):
            ocp.CheckpointManager(tmp_path, handler_registry=chain_handlers([codec])).restore(1)


def test_the_keys_of_the_chain_restore(tmp_path: Path) -> None:
    saver = ocp.CheckpointManager(tmp_path, handler_registry=chain_handlers([streamxf.Encrypt(KEY)]))
    saver.save(1, args=ocp.args.StandardSave({"w": jnp.arange(9.0)}))
    saver.wait_until_finished()
    assert saver.restore(1)["w"][8] == 8
    saver.close()


def test_what_it_cannot_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ChainError):
        chain_handlers("encrypt+zstd", keys=KEY)
    handler = ChainHandler()
    for args in (
        ocp.args.PyTreeSave(tree(), save_args={}),
        ocp.args.StandardSave(tree(), custom_metadata={"a": 1}),
        ocp.args.StandardSave({"a/b": 1, "a": {"b": 2}}),
        ocp.args.StandardSave(jnp.ones(3)),
    ):
        with pytest.raises(ParameterError):
            handler.save(tmp_path / "refused", args)
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    with pytest.raises(UnsupportedError, match="nested too deep"):
        handler.save(tmp_path / "refused", ocp.args.StandardSave(deep))
    with pytest.raises(UnsupportedError, match="int4"):
        handler.save(tmp_path / "refused", ocp.args.StandardSave({"w": jnp.ones(3, dtype=jnp.int4)}))
    with pytest.raises(UnsupportedError, match="local"):
        handler.save("gs://bucket/run", ocp.args.StandardSave(tree()))
    assert not (tmp_path / "refused").exists()

    handler.save(tmp_path / "saved", ocp.args.StandardSave({"w": jnp.ones((2, 3))}))
    for target, error in ({"w": jnp.ones((3, 2))}, "shape"), ({"v": jnp.ones(3)}, "lacks: v"):
        with pytest.raises(ParameterError, match=error):
            handler.restore(tmp_path / "saved", ocp.args.StandardRestore(target))
    with pytest.raises(ParameterError, match="restore_args"):
        handler.restore(tmp_path / "saved", ocp.args.PyTreeRestore(restore_args={"w": None}))


def test_orbaxs_own_folders_are_archived(tmp_path: Path) -> None:
    saver = ocp.CheckpointManager(tmp_path / "run")
    saver.save(12, args=ocp.args.StandardSave({"w": jnp.arange(1000.0)}))
    saver.close()
    with (
        streamxf.open(tmp_path / "step-12.tar.sxf", "wb", chain="checksum+encrypt", keys=KEY) as file,
        tarfile.open(fileobj=file, mode="w|") as archive,
    ):
        archive.add(tmp_path / "run" / "12", arcname="")
    with streamxf.open(tmp_path / "step-12.tar.sxf", keys=KEY) as file, tarfile.open(fileobj=file) as archive:
        archive.extractall(tmp_path / "restored" / "12", filter="data")
    restored = ocp.CheckpointManager(tmp_path / "restored").restore(12, args=ocp.args.StandardRestore())
    assert np.array_equal(restored["w"], np.arange(1000.0))
