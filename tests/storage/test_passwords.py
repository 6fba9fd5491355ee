"""The password of a URL is shown to nobody, wherever the URL comes in a message, a report, a log or a file."""

import errno
import logging
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from fsspec.implementations.memory import MemoryFileSystem
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.cli.__main__ import main
from streamxf.keys.key import Key
from streamxf.keys.ring import format_key
from streamxf.storage import abilities
from streamxf.storage.opening import open_storage
from tests.altered import flipped

PASSWORD = "hunter2"
RUN = f"vault://user:{PASSWORD}@host/run"
SHOWN = "vault://user:***@host/run"
NEWEST = f"{RUN}/step-2"
STATE = {"w": torch.ones(300), "o": {"a": 1}}


class Vault(MemoryFileSystem):
    """Takes passwords in URLs, as SFTP does."""

    protocol = "vault"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        path = "/" + path.removeprefix("vault://").partition("/")[2] if path.startswith("vault://") else path
        return str(MemoryFileSystem._strip_protocol(path))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        if path != self._strip_protocol(path):  # the SFTP of fsspec takes what it is given for a path
            self.pseudo_dirs.append(path)
        super().makedirs(path, exist_ok=exist_ok)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("VAULT", format_key(Key(bytes(range(32)))))
    monkeypatch.setattr(Vault, "store", {})
    monkeypatch.setattr(Vault, "pseudo_dirs", [""])
    fsspec.register_implementation("vault", Vault, clobber=True)
    known = abilities.CLIENTS["fsspec.implementations.memory.MemoryFileSystem"]
    monkeypatch.setitem(abilities.CLIENTS, f"{Vault.__module__}.Vault", known)
    with warnings.catch_warnings(), streamxf.CheckpointManager(RUN, chain="zstd") as manager:
        warnings.simplefilter("ignore")
        for step in (1, 2):
            manager.save(step, STATE)
    return RUN


def damage(name: str) -> None:
    (path,) = (path for path in Vault.store if path.startswith(f"/run/{name}/__") and path.endswith(".distcp"))
    Vault().pipe(path, flipped(Vault.store[path].getvalue()))


def load(path: str) -> None:
    state = {"w": torch.zeros(300), "o": {"a": 0}}
    dcp.load(state, storage_reader=streamxf.FsspecReader(path), no_dist=True)


def resume(run: str) -> Any:
    with streamxf.CheckpointManager(run, chain="zstd") as manager:
        return manager.resume({"w": torch.zeros(300), "o": {"a": 0}})


CALLS: dict[str, Callable[[str], Any]] = {
    "load": load,
    "save": lambda path: dcp.save(
        STATE, storage_writer=streamxf.FsspecWriter(f"{path}-{len(Vault.store)}", chain="zstd")
    ),
    "resume": resume,
    "verify": streamxf.verify,
    "inspect": streamxf.inspect,
    "list": lambda path: [*streamxf.list_checkpoints(path)],
    "salvage": streamxf.load_intact,
    "clean": streamxf.clean,
    "recipients": streamxf.recipients,
    "diff": lambda path: streamxf.diff(path, path),
    "forget": lambda path: streamxf.forget(path, keep=streamxf.Retention(last=5)),
    "transcode": lambda path: streamxf.transcode(path, f"{RUN}/new", "zstd"),
    "transcode onto it": lambda path: streamxf.transcode(f"{RUN}/step-1", path, "zstd"),
    "unpack": lambda path: streamxf.unpack(path, f"{RUN}/new.pt"),
    "unpack onto it": lambda path: streamxf.unpack(f"{RUN}/step-1", path),
    "pack": lambda path: streamxf.pack(path, f"{RUN}/packed", "zstd"),
}
COMMANDS = {name: [] for name in ("verify", "inspect", "list", "recipients", "cat", "stock")}
COMMANDS |= {name: [f"{RUN}/new"] for name in ("diff", "pack", "salvage", "transcode", "unpack")}
COMMANDS |= {"clean": ["--dry-run"], "forget": ["--keep", "last=1", "--dry-run"], "rename": ["w=v"]}
COMMANDS |= {"rekey": ["--key", "env:VAULT", "--recipient", "env:VAULT"]}
CALLS |= {
    f"streamxf {name}{how}": lambda path, name=name, how=how: main([name, path, *COMMANDS[name], *how.split()])
    for name in COMMANDS
    for how in ("", " --json")[: 1 if name == "cat" else 2]
}


@pytest.mark.parametrize("call", CALLS)
def test_nothing_shows_a_password(
    run: str, call: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a run, its checkpoint, one that is damaged, and one that is missing."""
    caplog.set_level(logging.DEBUG, "streamxf")
    shown = []
    for _ in range(2):
        for path in (run, NEWEST, f"{run}/none"):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    result = CALLS[call](path)
                    shown += [repr(result), str(result)]
                except BaseException as error:
                    shown += traceback.format_exception_only(error)
            shown += [str(each.message) for each in caught]
        damage("step-2")
    logged = [each.getMessage() for each in caplog.records if not each.name.startswith("c10d")]  # which is torch's own
    assert PASSWORD not in "\n".join((*shown, *logged, *capfd.readouterr()))
    assert not any(PASSWORD.encode() in file.getvalue() or PASSWORD in path for path, file in Vault.store.items())
    assert not any(PASSWORD in path for path in Vault.pseudo_dirs)


def test_what_opens_a_checkpoint_has_the_password(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert streamxf.latest(run) == NEWEST
    assert main(["latest", run]) == 0
    assert capsys.readouterr().out.strip() == NEWEST
    storage = open_storage(run)
    assert (storage.label(), storage.label("a"), storage.location("a")) == (SHOWN, f"{SHOWN}/a", f"{RUN}/a")
    assert (storage.child("a").location(), storage.child("a").parent()[0].location()) == (f"{RUN}/a", RUN)
    load(NEWEST)


ASKED = ("open", "info", "ls", "find", "ukey", "cat_file", "pipe_file", "rm_file", "makedirs", "exists")


@pytest.mark.parametrize("call", CALLS)
def test_no_error_of_a_client_shows_a_password(
    run: str, call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    """Nor does anything in its traceback: clients name what they asked for by its URL."""
    caplog.set_level(logging.DEBUG, "streamxf")
    shown: list[str] = []
    refused = 0

    def refuse(*_: Any, **__: Any) -> Any:
        nonlocal refused
        refused += 1
        try:
            raise FileNotFoundError(errno.ENOENT, f"{NEWEST}/file is not there", f"{NEWEST}/file")
        except OSError as error:
            raise (OSError(NEWEST) if refused % 2 else ValueError(f"no answer of {NEWEST}")) from error

    for number, method in enumerate(ASKED, list(CALLS).index(call)):
        with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            patch.setattr(Vault, method, refuse)
            patch.setitem(globals(), "__name__", "fsspec.vault")  # as of what a client raises
            try:
                shown.append(str(CALLS[call]((run, NEWEST)[number % 2])))
            except BaseException as error:
                shown += traceback.format_exception(error)
        shown += [str(each.message) for each in caught]
    assert refused, "it did not get as far"
    logged = [each.getMessage() for each in caplog.records if not each.name.startswith("c10d")]
    assert PASSWORD not in "\n".join((*shown, *logged, *capfd.readouterr()))


def test_a_save_over_another_names_it_without_a_password(run: str) -> None:
    with pytest.warns(UserWarning, match=r"existing checkpoint in vault://user:\*\*\*@host"):
        dcp.save(STATE, storage_writer=streamxf.FsspecWriter(NEWEST), no_dist=True)
    writer = streamxf.FsspecWriter(NEWEST, overwrite=False)
    with pytest.raises(CheckpointException, match=r"already exists in vault://user:\*\*\*@host"):
        dcp.save(STATE, storage_writer=writer, no_dist=True)
