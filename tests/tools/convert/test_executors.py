"""``transcode(executor=)`` and ``pack(executor=)``: the copy of one process, whatever becomes of workers."""

import multiprocessing
import os
import pickle
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint import save as dcp_save

import streamxf
from streamxf.chain import Chains
from streamxf.checkpoint.publish import assemble
from streamxf.checkpoint.saving import Extensions
from streamxf.errors import BlockError, KeyMissingError, ParameterError, PolicyError
from streamxf.keys import Key, KeyRing, PrivateKey, SigningKey
from streamxf.keys.ring import format_key
from streamxf.tools.convert.pack import pack, transcode
from streamxf.tools.convert.unpack import unpack
from tests.altered import flip
from tests.dcp.shards import rows, save_shards
from tests.tools.convert.folders import contents
from tests.tools.convert.states import assert_same, assert_whole, data_files, loaded, only_named, trained
from tests.tools.executors import Altering, Backwards, Elsewhere, Losing

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is unavailable")

KEY = Key(bytes(range(32)))
FILE_SIZE = 400_000


def copied(source: Any, target: Any, executor: Executor | None, chain: Any = "zstd", **options: Any) -> Any:
    return transcode(source, target, chain, file_size=FILE_SIZE, executor=executor, **options)


def counts(done: Any) -> tuple[Any, ...]:
    return done.items, done.files, done.raw_bytes, done.stored_bytes, done.kept_files, done.discarded_files


# -- the same copy -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["threads", "fork", "processes", "elsewhere", "backwards", "losing"])
def test_the_copy_is_that_of_one_process(tmp_path: Path, source: Path, processes: Executor, kind: str) -> None:
    if kind == "fork":
        executor: Any = ProcessPoolExecutor(2, multiprocessing.get_context("fork"))
    else:
        lossy = Losing(lambda number: number % 3 == 1)
        known = {"processes": processes, "elsewhere": Elsewhere(), "backwards": Backwards(), "losing": lossy}
        executor = known.get(kind) or ThreadPoolExecutor(3)
    target = tmp_path / "target"
    done = copied(source, target, executor)
    alone = copied(source, tmp_path / "alone", None)
    assert counts(done)[:3] == counts(alone)[:3]
    assert done.files > 5
    assert (done.notes != ()) == (kind == "losing")
    assert_same(loaded(target), trained())
    assert_whole(target)
    only_named(target)
    assert len({name.rpartition("_")[2] for name in data_files(target)}) == done.files  # a writer id for each
    if executor is not processes:
        executor.shutdown()


@pytest.mark.parametrize("chain", ["", "raw", "lz4+checksum"])
def test_other_chains(tmp_path: Path, source: Path, chain: str) -> None:
    executor = Elsewhere()
    assert copied(source, tmp_path / "target", executor, chain).notes == ()
    assert executor.sent
    assert_same(loaded(tmp_path / "target", stock=not chain), trained())
    assert_whole(tmp_path / "target")
    (tmp_path / "none").mkdir()
    with streamxf.CheckpointWriter(tmp_path / "none"):
        """A checkpoint of nothing."""
    assert copied(tmp_path / "none", tmp_path / "copy", executor, chain).items == 0


@pytest.mark.parametrize("elsewhere", [False, True])
def test_encrypted_and_signed(
    tmp_path: Path, source: Path, processes: Executor, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = SigningKey.generate()
    dcp_save(trained(), storage_writer=streamxf.FileSystemWriter(tmp_path / "in", _extensions=[streamxf.Encrypt(KEY)]))
    for name, key in ("OLD", KEY), ("NEW", new := Key.generate()), ("SIGNER", signer):
        monkeypatch.setenv(name, format_key(key))
    executor = Elsewhere() if elsewhere else processes
    how: dict[str, Any] = {"keys": KEY, "recipients": new, "signer": signer}
    if elsewhere:
        how = {"keys": "env:OLD", "recipients": "env:NEW", "signer": "env:SIGNER"}
    done = copied(tmp_path / "in", tmp_path / "target", executor, "floatzip+encrypt", **how)
    assert done.notes == ()
    ring = KeyRing(new, trust=signer.verify_key)
    assert_same(loaded(tmp_path / "target", ring), trained())
    assert_whole(tmp_path / "target", ring)
    only_named(tmp_path / "target")
    if isinstance(executor, Elsewhere):
        sent = b"".join(executor.sent)
        assert all(key.reveal() not in sent for key in (KEY, new, signer))


def test_ranks_with_metadata_of_their_own_in_place(tmp_path: Path, processes: Executor) -> None:
    whole = torch.arange(90_000.0).reshape(300, 300)
    states = [{"w": rows(whole, rank, 3), "own": torch.full((40, 900), rank)} for rank in range(3)]
    save_shards(tmp_path / "a", states, lambda: [streamxf.ZStandard()], use_collectives=False)
    done = transcode(tmp_path / "a", chain="lz4", in_place=True, file_size=20_000, executor=processes)
    assert len(done.save_ids) == 3
    assert done.notes == ()
    assert_whole(tmp_path / "a")
    for rank, state in enumerate(states):
        with streamxf.Checkpoint(tmp_path / "a", rank=rank) as found:
            assert torch.equal(found["own"].read(), state["own"])


def test_checkpoints_of_torchs_writer(tmp_path: Path, processes: Executor) -> None:
    dcp_save(trained(), storage_writer=StockWriter(tmp_path / "stock"))
    copied(tmp_path / "stock", tmp_path / "target", processes)
    assert_same(loaded(tmp_path / "target"), trained())


def test_packed_files_and_folders_come_out_as_they_were(tmp_path: Path, processes: Executor) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    tensors = {f"w{n}": torch.randn(100, 300) for n in range(9)}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    objects = {"lr": 0.1, "when": torch.Size([3]), "groups": [{"betas": (0.9, 0.99)}]}
    torch.save({"state": {n: torch.randn(300, 100).t() for n in range(5)}, **objects}, folder / "optimizer.pt")
    for source in (folder, folder / "model.safetensors", folder / "optimizer.pt"):
        target = tmp_path / f"packed-{source.name}"
        for executor, key in ((processes, KEY), (Elsewhere(), None)):
            done = pack(source, target, recipients=key, file_size=FILE_SIZE, executor=executor, overwrite=True)
            assert done.notes == ()
            back = tmp_path / f"{key}" / source.name
            back.parent.mkdir(exist_ok=True)
            unpack(target, back, keys=key)
            if source is folder:
                assert contents(back) == contents(folder)
            else:
                assert back.read_bytes() == source.read_bytes()
    assert loaded(tmp_path / "packed-optimizer.pt")["groups"] == objects["groups"]


# -- what becomes of workers -----------------------------------------------------------------------------------------


class DeadlyTarget(Executor):
    """Each worker is killed before it says that it is done, so that what it wrote is there twice."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **_: Any) -> Any:
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            future = pool.submit(_then_killed, pickle.dumps((call, args)))
            future.exception()
            return future


def _then_killed(task: bytes) -> None:
    call, args = pickle.loads(task)
    call(*args)
    os.kill(os.getpid(), 9)


def test_workers_that_are_killed_once_they_are_done(tmp_path: Path, source: Path) -> None:
    done = copied(source, tmp_path / "target", DeadlyTarget())
    assert f"{done.files} tasks: BrokenProcessPool" in done.notes[-1]
    assert_same(loaded(tmp_path / "target"), trained())
    only_named(tmp_path / "target")


def test_what_workers_finished_is_kept(tmp_path: Path, source: Path) -> None:
    """An interrupt of this process, and a damaged item: what is done stays, and the next call goes on from there."""
    whole = copied(source, tmp_path / "whole", None).files

    class Interrupting(Elsewhere):
        def made(self, call: Callable[..., Any], args: Any) -> Any:
            if len(self.sent) == 3:
                raise KeyboardInterrupt
            return super().made(call, args)

    target = tmp_path / "target"
    with pytest.raises(KeyboardInterrupt) as raised:
        copied(source, target, Interrupting())
    assert "finished data files, which stay: 3 or more of" in raised.value.__notes__[-1]
    executor = Elsewhere()
    done = copied(source, target, executor)
    assert (done.kept_files, done.discarded_files, len(executor.sent)) == (3, 0, whole - 3)
    assert_same(loaded(target), trained())
    only_named(target)
    begun = tmp_path / "begun"
    with pytest.raises(KeyboardInterrupt):
        copied(source, begun, Interrupting())
    assert copied(source, begun, None).kept_files == 3  # and of one process, too


def test_damage_is_an_error_as_in_one_process(tmp_path: Path, source: Path, processes: Executor) -> None:
    flip(max((source / name for name in data_files(source)), key=lambda path: path.stat().st_size))
    with pytest.raises(BlockError) as alone:
        copied(source, tmp_path / "alone", None)
    with pytest.raises(BlockError) as there:
        copied(source, tmp_path / "target", processes)
    assert str(there.value) == str(alone.value)
    assert not (tmp_path / "target" / ".metadata").exists()


FORGED: dict[str, Callable[[Any], Any]] = {
    "another's file": lambda found: (("../../etc/passwd", found[0][1]), *found[1:]),
    "the metadata": lambda found: ((".metadata", 0), *found[1:]),
    "a file that is not there": lambda found: ((f"__0_0_{'0' * 32}.distcp", 0), *found[1:]),
}


@pytest.mark.parametrize("kind", FORGED)
def test_what_is_no_result_counts_for_nothing(tmp_path: Path, source: Path, kind: str) -> None:
    """Names that are no data file's lead nowhere: what workers wrote is found by the listing, by its slips."""
    target = tmp_path / "target"
    done = copied(source, target, Altering(FORGED[kind]))
    assert (done.notes == ()) == (kind in ("another's file", "the metadata"))
    assert_same(loaded(target), trained())
    only_named(target)


class Meddling(Elsewhere):
    """Alters what workers have written, beside an honest result."""

    def __init__(self, target: Path, meddle: Callable[[Path], object]) -> None:
        super().__init__()
        self.target, self.meddle = target, meddle

    def made(self, call: Callable[..., Any], args: Any) -> Any:
        result = super().made(call, args)
        self.meddle(self.target / f"{result[0][0]}")
        return result


@pytest.mark.parametrize(
    "meddle",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.with_name(f"{path.name}.slip").unlink(),
        lambda path: flip(path.with_name(f"{path.name}.slip"), -100),
        lambda path: os.replace(path.with_name(f"{path.name}.slip"), path.parent / f"__0_1_{'1' * 32}.distcp.slip"),
    ],
    ids=["gone", "cut", "slip gone", "slip altered", "slip moved"],
)
@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_files_that_are_not_as_slips_say_are_written_here(
    tmp_path: Path, source: Path, meddle: Callable[[Path], object], key: Key | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", format_key(KEY))
    target = tmp_path / "target"
    recipients = None if key is None else "env:SOME_KEY"
    done = copied(source, target, Meddling(target, meddle), "zstd+encrypt" if key else "zstd", recipients=recipients)
    assert f"{done.files} tasks: the target has not all that workers wrote" in done.notes[-1]
    assert_same(loaded(target, key), trained())
    assert_whole(target, key)
    only_named(target)


def drafted(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> int:
    """Have workers write all data files, of which nothing is published; returns how many."""
    with monkeypatch.context() as patch:
        patch.setattr("streamxf.checkpoint.resumable.publish", lambda *_, **__: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            copied(source, target, Elsewhere(), **options)
    return len(list(target.glob("*.slip")))


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
@pytest.mark.parametrize("alone", [True, False])
def test_a_large_slip_that_is_damaged_anywhere_is_ignored(
    tmp_path: Path, source: Path, alone: bool, key: Key | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The items of large ones are checked when they are read, and not before."""
    monkeypatch.setattr("streamxf.format.index._SMALL", 0)
    monkeypatch.setenv("SOME_KEY", format_key(KEY))
    how = {} if key is None else {"chain": "zstd+encrypt", "recipients": "env:SOME_KEY"}
    target = tmp_path / "target"
    files = drafted(source, target, monkeypatch, **how)
    for number, slip in enumerate(sorted(target.glob("*.slip"))):
        flip(slip, slip.stat().st_size * (2 * number + 1) // (2 * files))
    done = copied(source, target, None if alone else Elsewhere(), **how)
    assert (done.kept_files, done.discarded_files) == (0, files)
    assert_same(loaded(target, key), trained())
    assert_whole(target, key)
    only_named(target)


@pytest.mark.parametrize("kind", ["shape", "dtype"])
def test_slips_that_describe_other_tensors_are_of_no_use(
    tmp_path: Path, source: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(item: Any) -> Any:
        if kind == "dtype":
            return replace(item, dtype="int32" if item.dtype == "float32" else item.dtype)
        return replace(
            item, chunks=tuple(each._replace(shape=tuple(n - 1 for n in each.shape)) for each in item.chunks)
        )

    class Lying(Elsewhere):
        def made(self, call: Callable[..., Any], args: Any) -> Any:
            with monkeypatch.context() as patch:
                patch.setattr(
                    "streamxf.checkpoint.resumable.assemble",
                    lambda items, *rest, **options: assemble(
                        {name: lie(item) if hasattr(item, "chunks") else item for name, item in items.items()},
                        *rest,
                        **options,
                    ),
                )
                return super().made(call, args)

    done = copied(source, tmp_path / "target", Lying())
    assert "the target has not all that workers wrote" in done.notes[-1]
    assert_same(loaded(tmp_path / "target"), trained())
    assert_whole(tmp_path / "target")
    only_named(tmp_path / "target")


def test_slips_of_who_has_no_key_are_of_no_use(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that writes files and slips without encryption: none of these is published."""
    monkeypatch.setenv("SOME_KEY", format_key(KEY))
    monkeypatch.setattr("streamxf.checkpoint.resumable._job_id", lambda *_: "0" * 32)

    class Plain(Elsewhere):
        def made(self, call: Callable[..., Any], args: Any) -> Any:
            away, there, (*first, inner) = args
            clear = partial(Extensions, (), Chains.chosen("zstd"))
            plain = [clear if "zstd+encrypt" in getattr(each, "args", ()) else each for each in inner]
            return super().made(call, (away, there, (*first, tuple(plain))))

    target = tmp_path / "target"
    done = copied(source, target, Plain(), "zstd+encrypt", recipients="env:SOME_KEY")
    assert "the target has not all" in done.notes[-1]
    assert_same(loaded(target, KEY), trained())
    assert_whole(target, KEY)


# -- keys and arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["recipients", "signer", "chain"])
def test_a_key_in_memory_stays_here(tmp_path: Path, source: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Elsewhere()
    monkeypatch.setenv("SOME_KEY", format_key(KEY))
    how: dict[str, Any] = {"recipients": "env:SOME_KEY"}
    chain: Any = "encrypt"
    if what == "chain":
        chain, how = [streamxf.Encrypt(KEY)], {}
    else:
        how[what] = SigningKey.generate() if what == "signer" else KEY
    with pytest.raises(ParameterError, match=rf"^{'recipients' if what == 'chain' else what}= has a key in memory"):
        copied(source, tmp_path / "target", executor, chain, **how)
    assert not executor.sent
    assert not (tmp_path / "target").exists()


def test_public_keys_alone(tmp_path: Path, source: Path, processes: Executor) -> None:
    """This process could not take up what workers encrypt; with an owner's key beside them it can."""
    private, signer = PrivateKey.generate(), SigningKey.generate()
    with pytest.raises(KeyMissingError, match="these can only encrypt"):
        copied(source, tmp_path / "target", processes, "encrypt", recipients=private.public, signer=signer)
    unsigned = KeyRing(private, allow_unsigned=True)
    with pytest.raises(PolicyError, match="not signed"):
        copied(source, tmp_path / "target", processes, "encrypt", recipients=unsigned)
    assert not (tmp_path / "target").exists()
    assert copied(source, tmp_path / "target", processes, "encrypt", recipients=[private.public, KEY]).notes == ()
    assert_same(loaded(tmp_path / "target", KEY), trained())


def test_how_much_is_copied_is_limited_as_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamxf.budget.FREE", 0)
    shared = torch.randn(20_000)
    torch.save({f"{number:02}": shared.view(100, 200).t() for number in range(9)}, tmp_path / "a.pt")
    executor = Elsewhere()
    for each in (None, executor):
        with pytest.raises(PolicyError, match="max_expansion"):
            pack(tmp_path / "a.pt", tmp_path / f"{each}", file_size=80_000, max_expansion=5, executor=each)
    assert len(executor.sent) > 3
