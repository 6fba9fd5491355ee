"""`streamxf.install`: writers and readers that somebody else makes use the chain, and afterwards torch is as before."""

import inspect
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import datetime
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader as ReaderNamedBefore
from torch.distributed.checkpoint import FileSystemWriter as WriterNamedBefore
from torch.distributed.checkpoint import _fsspec_filesystem as torch_fsspec
from torch.distributed.checkpoint import filesystem, staging
from torch.distributed.checkpoint._async_process_executor import _ProcessBasedAsyncCheckpointExecutor
from torch.distributed.checkpoint._async_thread_executor import _ThreadBasedAsyncCheckpointExecutor
from torch.distributed.checkpoint._extension import ZStandard as StockZStandard
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.torch_version import TorchVersion

import streamxf
from streamxf import Checksum, Encrypt, FloatZip, ZStandard
from streamxf.dcp import install as installing
from streamxf.errors import ChainError, KeyMissingError, ParameterError, PolicyError, UnsupportedError
from streamxf.keys import KeyRing
from tests.forked import status_of_child
from tests.polling import wait_until

from .helpers import KEY, OTHER_KEY, assert_same, blank, load_with, refused, run_as_main, since, stored_chain

STATE = {"model": {"bias": torch.ones(7, dtype=torch.bfloat16), "weight": torch.randn(300, 40)}, "step": 7}
CHAIN = "floatzip+checksum+encrypt"
SIGNER = streamxf.SigningKey.generate()
PAIR = streamxf.PrivateKey.generate()
CHANGED: list[tuple[type, str]] = [
    (filesystem.FileSystemWriter, "__init__"),
    (filesystem.FileSystemReader, "__init__"),
    (torch_fsspec.FsspecWriter, "__init__"),
    (torch_fsspec.FsspecReader, "__init__"),
    (_ThreadBasedAsyncCheckpointExecutor, "execute_save"),
    (_ProcessBasedAsyncCheckpointExecutor, "execute_save"),
    (filesystem._FileSystemWriter, "set_up_storage_writer"),
]
if TorchVersion(torch.__version__) >= "2.9":
    CHANGED.append((staging.DefaultStager, "stage"))


def as_found() -> list[dict[str, Any]]:
    """What is in the classes, except that Python makes an empty ``__annotations__`` when somebody asks for it."""
    return [{name: part for name, part in vars(owner).items() if name != "__annotations__"} for owner, _ in CHANGED]


def assert_loads(**options: Any) -> None:
    """DCP loads what was saved."""
    target = blank(STATE)
    dcp.load(target, **options)
    assert_same(target, STATE)


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    """Whatever a test installs, it undoes, and torch's classes are as they were."""
    before = as_found()
    yield
    assert streamxf.installed() is None
    assert as_found() == before


# -- what goes through the chain -----------------------------------------------------------------------


def test_checkpoint_ids(checkpoint: Path) -> None:
    with streamxf.install(CHAIN, keys=KEY):
        dcp.save(STATE, checkpoint_id=checkpoint)
        assert_loads(checkpoint_id=checkpoint)
    assert stored_chain(checkpoint) == CHAIN


def test_urls(request: pytest.FixtureRequest) -> None:
    url = f"memory://{request.node.name}/step-1"
    with streamxf.install(CHAIN, keys=KEY):
        dcp.save(STATE, checkpoint_id=url)
        assert_loads(checkpoint_id=url)
        assert type(torch_fsspec.FsspecReader(url)) is streamxf.FsspecReader
    assert stored_chain(url) == CHAIN


def test_classes_that_were_imported_before(checkpoint: Path) -> None:
    with streamxf.install(CHAIN, keys=KEY):
        writer = WriterNamedBefore(checkpoint)
        reader = ReaderNamedBefore(checkpoint)
    assert type(writer) is streamxf.FileSystemWriter
    assert type(reader) is streamxf.FileSystemReader
    assert isinstance(writer, WriterNamedBefore)
    # they keep the chain and the keys that they were made with
    dcp.save(STATE, storage_writer=writer)
    assert_same(load_with(STATE, reader), STATE)
    assert stored_chain(checkpoint) == CHAIN


def test_arguments_by_position_are_torchs(tmp_path: Path) -> None:
    with streamxf.install():
        writer: Any = WriterNamedBefore(tmp_path, False, False, 3, 10_000, True, False)
        assert (writer.single_file_per_rank, writer.sync_files, writer.thread_count) == (False, False, 3)
        assert (writer.per_thread_copy_ahead, writer.overwrite) == (10_000, False)
        with pytest.raises(TypeError, match="path"):
            WriterNamedBefore()  # type: ignore[call-arg]
        assert inspect.signature(WriterNamedBefore).parameters["cache_staged_state_dict"].default is False


def test_torchs_tools(tmp_path: Path) -> None:
    with streamxf.install(CHAIN, keys=KEY):
        dcp.save(STATE, checkpoint_id=tmp_path / "one")
        dcp_to_torch_save(tmp_path / "one", tmp_path / "one.pt")
        torch_save_to_dcp(tmp_path / "one.pt", tmp_path / "two")
    assert_same(torch.load(tmp_path / "one.pt"), STATE)
    assert stored_chain(tmp_path / "two") == CHAIN


def test_stock_checkpoints_load(checkpoint: Path) -> None:
    dcp.save(STATE, storage_writer=WriterNamedBefore(checkpoint, _extensions=[StockZStandard()]))
    with streamxf.install():
        assert_loads(checkpoint_id=checkpoint)


def test_without_arguments_it_is_the_writers_default(checkpoint: Path) -> None:
    with streamxf.install():
        dcp.save(STATE, checkpoint_id=checkpoint)
    assert stored_chain(checkpoint, None) == "floatzip"


def test_extensions_of_the_caller_come_first(checkpoint: Path) -> None:
    with streamxf.install("checksum"):
        dcp.save(STATE, storage_writer=WriterNamedBefore(checkpoint, _extensions=[StockZStandard()]))
        assert_loads(checkpoint_id=checkpoint)
    assert stored_chain(checkpoint, None) == "stream.zstd+checksum"


def test_codecs_of_the_caller_stay(checkpoint: Path) -> None:
    with streamxf.install("floatzip"):
        dcp.save(STATE, storage_writer=WriterNamedBefore(checkpoint, _extensions=[ZStandard(), Encrypt(OTHER_KEY)]))
        assert_loads(storage_reader=ReaderNamedBefore(checkpoint, streamxf.Registry(keys=OTHER_KEY)))
    assert stored_chain(checkpoint, OTHER_KEY) == "zstd+encrypt"


def test_keys_of_a_registry_stand_instead(checkpoint: Path) -> None:
    with streamxf.install([Encrypt(KEY)]):
        dcp.save(STATE, checkpoint_id=checkpoint)
        reader = ReaderNamedBefore(checkpoint, streamxf.Registry(keys=OTHER_KEY))
        with refused(KeyMissingError):
            assert_loads(storage_reader=reader)


def test_readers_have_the_keys_of_the_chain(checkpoint: Path) -> None:
    with streamxf.install([FloatZip(), Encrypt([KEY, PAIR.public])]) as installation:
        assert [*installation.keys] == [KEY]
        dcp.save(STATE, checkpoint_id=checkpoint)
        assert_loads(checkpoint_id=checkpoint)


def test_what_is_not_encrypted_is_refused_where_there_are_keys(checkpoint: Path) -> None:
    dcp.save(STATE, checkpoint_id=checkpoint)
    with streamxf.install(CHAIN, keys=KEY):
        with refused(PolicyError):
            assert_loads(checkpoint_id=checkpoint)


def test_a_chain_that_only_encrypts_loads_no_plaintext(checkpoint: Path) -> None:
    dcp.save(STATE, storage_writer=WriterNamedBefore(checkpoint / "stock"))
    dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(checkpoint / "own", chain=[FloatZip()]))
    with streamxf.install([Encrypt(PAIR.public, signer=SIGNER)]) as installation:
        assert not len(installation.keys)
        dcp.save(STATE, checkpoint_id=checkpoint / "encrypted")
        for name in "stock", "own":
            with refused(PolicyError, "FileSystemReader(path, require=None)"):
                assert_loads(checkpoint_id=checkpoint / name)
            assert_same(load_with(STATE, streamxf.FileSystemReader(checkpoint / name, require=None)), STATE)
        with refused(KeyMissingError, "keys given: none"):
            assert_loads(checkpoint_id=checkpoint / "encrypted")
        with refused(KeyMissingError):
            load_with(STATE, streamxf.FileSystemReader(checkpoint / "encrypted", require=None))


def test_a_reader_of_ones_own_takes_plaintext_with_keys(checkpoint: Path) -> None:
    dcp.save(STATE, storage_writer=WriterNamedBefore(checkpoint / "stock"))
    dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(checkpoint / "own", chain=[FloatZip()]))
    dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(checkpoint / "encrypted", chain=[Encrypt(KEY)]))
    with streamxf.install([Encrypt(KEY)]):
        for name in "stock", "own", "encrypted":
            reader = streamxf.FileSystemReader(checkpoint / name, keys=KEY, require=None)
            assert_same(load_with(STATE, reader), STATE)
    for name in "stock", "own":
        with refused(PolicyError, "leave the keys out"):
            load_with(STATE, streamxf.FileSystemReader(checkpoint / name, keys=KEY))


def test_trust_is_in_the_chains_signer(checkpoint: Path) -> None:
    stranger = streamxf.SigningKey.generate()
    for keys, signer in (PAIR, SIGNER), (PAIR, stranger), (KEY, None):
        chain = [Encrypt(getattr(keys, "public", keys), signer=signer)]
        writer = streamxf.FileSystemWriter(checkpoint / str(signer), chain=chain)
        dcp.save(STATE, storage_writer=writer)
    with streamxf.install([Encrypt([PAIR.public, KEY], signer=SIGNER)], keys=[PAIR, KEY]):
        assert_loads(checkpoint_id=checkpoint / str(SIGNER))
        for signer, why in (stranger, "who is not trusted"), (None, "not signed"):
            with refused(PolicyError, why):
                assert_loads(checkpoint_id=checkpoint / str(signer))
    with streamxf.install([Encrypt(PAIR.public, signer=SIGNER)], keys=PAIR, reader={"trust": stranger.verify_key}):
        assert_loads(checkpoint_id=checkpoint / str(stranger))
        with refused(PolicyError, "who is not trusted"):
            assert_loads(checkpoint_id=checkpoint / str(SIGNER))


def test_options(checkpoint: Path) -> None:
    state = {"begun": datetime(2001, 2, 3)}
    target = blank(state)
    with streamxf.install(writer={"thread_count": 2, "sync_files": False}, reader={"safe_globals": [datetime]}):
        writer: Any = WriterNamedBefore(checkpoint, thread_count=3)
        assert (writer.thread_count, writer.sync_files) == (3, False)
        with pytest.warns(UserWarning, match="safe_globals"):
            dcp.save(state, checkpoint_id=checkpoint)
        dcp.load(target, checkpoint_id=checkpoint)
    assert target == state


# -- saves in the background --------------------------------------------------------------------------------


def test_a_save_in_a_thread_has_the_chain_of_the_call(checkpoint: Path) -> None:
    """Staging goes on while the installation ends."""
    with streamxf.install(CHAIN, keys=KEY):
        future = dcp.async_save(STATE, checkpoint_id=checkpoint)
    future.result()  # type: ignore[union-attr]
    assert stored_chain(checkpoint) == CHAIN


def in_background_process(folder: Path) -> None:
    """Run by `test_a_save_in_a_process_has_the_chain_of_the_call`, in a process that is not a test's: a child that DCP
    starts imports the main module again.
    """
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=0, world_size=1)
    with streamxf.install(CHAIN, keys=KEY):
        kind = AsyncCheckpointerType.PROCESS
        dcp.async_save(STATE, checkpoint_id=folder / "saved", async_checkpointer_type=kind).result()
    dist.destroy_process_group()


@pytest.mark.slow
def test_a_save_in_a_process_has_the_chain_of_the_call(tmp_path: Path) -> None:
    """The child imports this module and has no installation; the key reaches it with the writer."""
    run_as_main(in_background_process, tmp_path)
    assert stored_chain(tmp_path / "saved") == CHAIN


def test_an_async_save_without_a_place_fails_as_before() -> None:
    with streamxf.install():
        with pytest.raises(RuntimeError, match="checkpoint_id"):
            dcp.async_save(STATE).result()  # type: ignore[union-attr]


def test_writers_go_through_pickles(checkpoint: Path) -> None:
    with streamxf.install(CHAIN, keys=KEY):
        writer = WriterNamedBefore(checkpoint)
    assert KEY.reveal() not in pickle.dumps(writer)
    dcp.save(STATE, storage_writer=ForkingPickler.loads(ForkingPickler.dumps(writer)))
    assert stored_chain(checkpoint) == CHAIN


def test_a_forked_child_has_it_too(checkpoint: Path) -> None:

    def child() -> None:
        torch.set_num_threads(1)
        dcp.save(STATE, checkpoint_id=checkpoint, no_dist=True)

    with streamxf.install(CHAIN, keys=KEY):
        assert status_of_child(child) == 0
    assert stored_chain(checkpoint) == CHAIN


def test_a_child_that_is_forked_meanwhile_has_all_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A fork in the middle would leave the child a lock that no thread of its own releases."""
    begun, forks, points, made = threading.Event(), threading.Event(), installing._points, []
    os.register_at_fork(before=forks.set)

    def slowly() -> Any:
        begun.set()
        assert forks.wait(120)
        return points()

    monkeypatch.setattr(installing, "_points", slowly)
    thread = threading.Thread(target=lambda: made.append(streamxf.install("floatzip")))
    thread.start()
    assert begun.wait(120)

    def child() -> None:
        assert chain_of(tmp_path) == "floatzip"
        installation = streamxf.installed()
        assert installation is not None
        installation.uninstall()
        assert chain_of(tmp_path) == "none"

    status = status_of_child(child)
    thread.join(120)
    assert status == 0
    assert chain_of(tmp_path) == "floatzip"  # what a child undoes is undone there
    made[0].uninstall()


# -- what is left alone -----------------------------------------------------------------------------------


SAFETENSORS = since("2.8", "writes no safetensors files")


class Theirs(filesystem.FileSystemWriter):
    """Some framework's own writer."""


@pytest.mark.parametrize(
    "make",
    [
        Theirs,
        pytest.param(lambda path: dcp.HuggingFaceStorageWriter(str(path)), marks=SAFETENSORS),
        pytest.param(
            lambda path: WriterNamedBefore(path, serialization_format=filesystem.SerializationFormat.SAFETENSORS),
            marks=SAFETENSORS,
        ),
    ],
)
@pytest.mark.parametrize("save", [dcp.save, lambda state, **options: dcp.async_save(state, **options).result()])
def test_other_writers(make: Any, save: Any, checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = type(make(checkpoint))
    name = f"{before.__module__}.{before.__name__}"
    state = {"weight": torch.ones(7)}
    with streamxf.install("floatzip") as installation:
        writers = [make(checkpoint) for _ in range(2)]
        assert {type(writer) for writer in writers} == {before}
        assert not installation.left_alone
        for writer in writers:
            save(state, storage_writer=writer)
    assert logged(caplog) == [f"a {name} that streamxf.install does not change is saving without the chain"]
    assert installation.left_alone == {name}


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == installing.__name__]


def test_writers_that_exist(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A framework may have made one in its constructor: that they save as before is said aloud."""
    writer = WriterNamedBefore(checkpoint)
    with streamxf.install() as installation:
        dcp.save(STATE, storage_writer=writer)
    assert stored_chain(checkpoint, None) == ""
    assert len(logged(caplog)) == len(installation.left_alone) == 1


def test_a_save_in_the_background_warns_when_it_is_called(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The thread may begin after the installation, and a process has none."""
    with streamxf.install():
        writer = Theirs(checkpoint)
        with pytest.raises(RuntimeError, match="not started"):
            executor = _ThreadBasedAsyncCheckpointExecutor()
            executor._executor = NotStarting()  # type: ignore[assignment]
            executor.execute_save(STATE, storage_writer=writer)
    assert len(logged(caplog)) == 1


class NotStarting:
    """An executor whose thread never begins."""

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("not started")


def test_streamxfs_own_classes(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    with streamxf.install(CHAIN, keys=KEY) as installation:
        dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(checkpoint, chain="zstd"))
        assert_same(load_with(STATE, streamxf.FileSystemReader(checkpoint)), STATE)
        streamxf.FsspecWriter("memory://any")
    assert stored_chain(checkpoint, None) == "zstd"
    assert not installation.left_alone


def test_attached_writers(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    with streamxf.install():
        dcp.save(STATE, storage_writer=streamxf.attach(Theirs(checkpoint), [Checksum()]))
        assert_same(load_with(STATE, streamxf.FileSystemReader(checkpoint)), STATE)
    assert not logged(caplog)


class TheirReader(ReaderNamedBefore):
    """A framework's own reader."""


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes of a framework whose names streamxf knows."""
    monkeypatch.setattr(installing, "_ATTACHED", {f"{__name__}.Theirs", f"{__name__}.TheirReader"})


@pytest.mark.usefixtures("known")
def test_known_classes_are_attached(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    with streamxf.install(CHAIN, keys=KEY):
        for _ in range(2):
            dcp.save(STATE, storage_writer=(writer := Theirs(checkpoint)))
            assert_loads(storage_reader=TheirReader(checkpoint))
        assert type(writer) is Theirs
        dcp.save(STATE, storage_writer=Theirs(checkpoint / "unencrypted", _extensions=[FloatZip()]))
        with refused(PolicyError):
            assert_loads(storage_reader=TheirReader(checkpoint / "unencrypted"))
    assert not logged(caplog)
    with streamxf.install(CHAIN, keys=OTHER_KEY), refused(KeyMissingError):
        assert_loads(storage_reader=TheirReader(checkpoint))
    with streamxf.Checkpoint(checkpoint, keys=KEY, require="bound") as read:
        assert torch.equal(read["model.weight"].read(), STATE["model"]["weight"])


@pytest.mark.usefixtures("known")
def test_known_classes_load_no_plaintext_under_a_chain_that_only_encrypts(checkpoint: Path) -> None:
    dcp.save(STATE, storage_writer=Theirs(checkpoint / "plain"))
    with streamxf.install([Encrypt(PAIR.public, signer=SIGNER)]):
        with refused(PolicyError, "require=None"):
            assert_loads(storage_reader=TheirReader(checkpoint / "plain"))
        dcp.save(STATE, storage_writer=Theirs(checkpoint / "encrypted"))
        with refused(KeyMissingError):
            assert_loads(storage_reader=TheirReader(checkpoint / "encrypted"))


@pytest.mark.usefixtures("known")
def test_nobody_waits_for_a_signature_that_known_classes_cannot_make(checkpoint: Path) -> None:
    with streamxf.install([Encrypt(KEY, signer=SIGNER)]):
        dcp.save(STATE, storage_writer=Theirs(checkpoint))
        assert_loads(storage_reader=TheirReader(checkpoint))
    with streamxf.install([Encrypt(KEY, signer=SIGNER)], reader={"require": "bound", "allow_unsigned": True}):
        assert_loads(checkpoint_id=checkpoint)
    with (
        streamxf.install([Encrypt(KEY)], reader={"trust": SIGNER.verify_key}),
        refused(PolicyError, "cannot be signed"),
    ):
        assert_loads(storage_reader=TheirReader(checkpoint))


@pytest.mark.usefixtures("known")
def test_a_known_reader_does_not_ignore_what_it_cannot_check(checkpoint: Path) -> None:
    with streamxf.install(reader={"expect_save_id": "0" * 32}):
        with pytest.raises(UnsupportedError, match="expect_save_id"):
            TheirReader(checkpoint)


# -- doing and undoing ----------------------------------------------------------------------------------------


def chain_of(path: Path) -> str:
    writer = WriterNamedBefore(path)
    return str(writer._extensions.chains) if isinstance(writer, streamxf.FileSystemWriter) else "none"


def test_nesting(tmp_path: Path) -> None:
    assert chain_of(tmp_path) == "none"
    outer = streamxf.install("lz4")
    with streamxf.install("floatzip") as inner:
        assert streamxf.installed() is inner
        assert chain_of(tmp_path) == "floatzip"
        assert "shadowed" in repr(outer)
        with pytest.raises(UnsupportedError, match="undo the inner one first"):
            outer.uninstall()
        assert chain_of(tmp_path) == "floatzip"
    assert streamxf.installed() is outer
    assert chain_of(tmp_path) == str(outer.chain)
    outer.uninstall()
    assert chain_of(tmp_path) == "none"
    for installation in (inner, outer):
        with pytest.raises(UnsupportedError, match="it is not installed any more"):
            installation.uninstall()


def test_threads(tmp_path: Path) -> None:
    """An installation is the process's. Threads that undo theirs out of order are told, and may try again."""
    together = threading.Barrier(8)

    def undone(installation: Any) -> bool:
        with suppress(UnsupportedError):  # another thread's lies on top
            installation.uninstall()
        return installation not in installing._stack

    def installs(number: int) -> None:
        together.wait(120)
        for _ in range(20):
            installation = streamxf.install("floatzip" if number % 2 else "zstd")
            assert chain_of(tmp_path) != "none"
            wait_until(partial(undone, installation))

    with ThreadPoolExecutor(8) as threads:
        [*threads.map(installs, range(8))]
    assert streamxf.installed() is None
    assert chain_of(tmp_path) == "none"


def test_who_undoes_one_waits_for_who_makes_one() -> None:
    installation = streamxf.install()
    with ThreadPoolExecutor(1) as threads:
        with installing._lock:
            undone = threads.submit(installation.uninstall)
            assert not wait([undone], 0.2).done
        undone.result(60)
    assert streamxf.installed() is None


def test_undone_within_the_block() -> None:
    with streamxf.install() as installation:
        installation.uninstall()
    with pytest.raises(KeyError), streamxf.install():
        raise KeyError


def test_it_says_what_it_changed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with streamxf.install(CHAIN, keys=KEY) as installation:
        told = repr(installation)
    assert told == (
        f"<streamxf installation: chain {CHAIN}, keys {KEY.id}; changed in torch {torch.__version__}: "
        f"{', '.join(sorted(owner.__name__ for owner, _ in CHANGED))}>"
    )
    assert repr(installation) == f"<streamxf installation, undone: chain {CHAIN}, keys {KEY.id}>"
    assert logged(caplog) == [told, repr(installation)]
    with streamxf.install([]) as installation:
        assert "chain (empty);" in repr(installation)


def test_what_somebody_else_replaced_since_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    installation = streamxf.install()
    with monkeypatch.context() as patch:
        patch.setattr(filesystem.FileSystemReader, "__init__", lambda self, path: None)
        with pytest.raises(UnsupportedError, match=r"FileSystemReader\.__init__ was replaced after streamxf\.install"):
            installation.uninstall()
    assert streamxf.installed() is installation
    installation.uninstall()


def test_after_an_interrupt_the_next_attempt_does_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> None:
        if arguments[0] is CHANGED[2][0]:
            raise KeyboardInterrupt
        setattr(*arguments)

    def interrupt(action: Callable[[], Any]) -> None:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(installing, "setattr", interrupted, raising=False)
            action()

    before = as_found()
    interrupt(streamxf.install)
    assert streamxf.installed() is None
    assert chain_of(tmp_path) == "none"
    installation = streamxf.install("floatzip")
    assert chain_of(tmp_path) == "floatzip"
    assert not [name for (owner, name), was in zip(CHANGED, before, strict=True) if vars(owner)[name] is was[name]]
    interrupt(installation.uninstall)
    installation.uninstall()


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"chain": "encrypt+zstd", "keys": KEY}, ChainError),
        ({"chain": "floatzip", "keys": KEY}, ParameterError),
        ({"chain": [Encrypt(KEY)], "keys": "no location"}, ParameterError),
        ({"writer": {"thread_count": 0}}, ParameterError),
        ({"writer": {"no_such": 1}}, ParameterError),
        ({"reader": {"no_such": 1}}, ParameterError),
        ({"writer": {"_extensions": []}}, ParameterError),
        ({"reader": {"keys": KEY}}, ParameterError),
        ({"reader": {"require": "bound"}}, ParameterError),
        (
            {
                "chain": [Encrypt(KEY)],
                "keys": KeyRing(KEY, trust=[SIGNER.verify_key]),
                "reader": {"trust": SIGNER.verify_key},
            },
            ParameterError,
        ),
        ({"chain": [Encrypt(KEY)], "reader": {"require": None}}, ParameterError),
    ],
)
def test_wrong_arguments_change_nothing(arguments: dict[str, Any], kind: type[Exception]) -> None:
    before = as_found()
    with pytest.raises(kind), streamxf.install(**arguments):
        pass
    assert as_found() == before


# -- torch's parts that are relied on --------------------------------------------------------------------------


def test_every_changed_part_was_named_here() -> None:
    with streamxf.install():
        assert {(hook.owner, hook.name) for hook in installing._hooks} == {*CHANGED}


def other_parameters(self: Any, where: str) -> None: ...


CHANGES: list[tuple[str, Callable[[pytest.MonkeyPatch], Any]]] = [
    (
        r"'torch\.distributed\.checkpoint\._storage_utils' has no attribute '_storage_setup'",
        lambda patch: patch.delattr("torch.distributed.checkpoint._storage_utils._storage_setup"),
    ),
    (
        r"_storage_setup takes \(self, where\), not \(storage, checkpoint_id, reader\)",
        lambda patch: patch.setattr("torch.distributed.checkpoint._storage_utils._storage_setup", other_parameters),
    ),
    (
        r"torch\.distributed\.checkpoint\._async_thread_executor",
        lambda patch: patch.setitem(sys.modules, "torch.distributed.checkpoint._async_thread_executor", None),
    ),
    (
        r"_ProcessBasedAsyncCheckpointExecutor has no method execute_save of its own",
        lambda patch: patch.delattr(_ProcessBasedAsyncCheckpointExecutor, "execute_save"),
    ),
    (
        r"execute_save takes \(self, where\), not \(self, checkpoint_id, storage_writer\)",
        lambda patch: patch.setattr(_ProcessBasedAsyncCheckpointExecutor, "execute_save", other_parameters),
    ),
    *(
        (
            rf"{owner.__module__}\.{owner.__name__}\.__init__ takes \(self, where\), not \(self, path",
            lambda patch, owner=owner: patch.setattr(owner, "__init__", other_parameters),
        )
        for owner, name in CHANGED
        if name == "__init__"
    ),
    (
        r"_FileSystemWriter has no method set_up_storage_writer of its own",
        lambda patch: patch.delattr(filesystem._FileSystemWriter, "set_up_storage_writer"),
    ),
    (
        r"filesystem\.FileSystemReader has no method __init__ of its own",
        lambda patch: patch.setattr(filesystem.FileSystemReader, "__init__", filesystem.StorageReader.__init__),
    ),
]


@pytest.mark.parametrize(("said", "change"), CHANGES, ids=[said for said, _ in CHANGES])
def test_a_torch_that_is_not_known(said: str, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        change(patch)
        before = as_found()
        with pytest.raises(UnsupportedError, match=said):
            streamxf.install()
        assert as_found() == before


def test_without_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "find_spec", lambda name: None)
    with streamxf.install() as installation:
        assert "Fsspec" not in repr(installation)
