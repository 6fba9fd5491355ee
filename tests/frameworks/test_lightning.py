"""The plug-in for Lightning, in a Trainer that is killed and resumed; and Lightning's DCP strategies."""

import hashlib
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import streamxf
from streamxf.checkpoint.notes import Note
from streamxf.errors import ChainError, ContainerError, KeyMissingError, ParameterError, PolicyError
from streamxf.integrations.lightning import ChainCheckpointIO
from streamxf.places import open_storage
from tests.dcp.helpers import KEY, OTHER_KEY, assert_same, stored_chain
from tests.tools.convert.test_consolidate import assert_holds, save

from .damaged import assert_falls_back, flip, truncate
from .killed import EXAMPLES, WAITING, assert_managed, finished, killed_at, two_ranks

STATE = {"state_dict": {"weight": torch.randn(300, 40)}, "epoch": 3}
CHAIN = "floatzip+checksum+encrypt"


@pytest.fixture
def lightning() -> Any:
    """The package, where it is installed; `ChainCheckpointIO` itself does without."""
    pytest.importorskip("lightning.fabric")
    return pytest.importorskip("lightning.pytorch")


@pytest.mark.slow
@pytest.mark.usefixtures("lightning")
def test_killed_and_resumed(tmp_path: Path) -> None:
    run = assert_managed(tmp_path, [sys.executable], [EXAMPLES / "lightning_trainer.py"])
    records = streamxf.list_checkpoints(run)
    assert [record.name for record in records][-2:] == ["step-9", "step-12"]
    assert len(records) <= 3, "the last 2, and the best one"
    assert all(record.metrics.keys() == {"loss"} for record in records)
    last = run / "step-12" / "lightning.ckpt"
    with pytest.raises(Exception, match="load"):
        torch.load(last)
    with streamxf.open(last) as file:
        assert torch.load(file)["global_step"] == 12


@pytest.mark.slow
@pytest.mark.usefixtures("lightning")
@pytest.mark.parametrize(
    ("launcher", "example", "part"),
    [(two_ranks(), "lightning_fsdp2.py", "lightning.ckpt"), ([sys.executable], "fabric_fsdp2.py", "")],
    ids=["trainer", "fabric"],
)
def test_fsdp2_killed_and_resumed(launcher: list[str | Path], example: str, part: str, tmp_path: Path) -> None:
    run = assert_managed(tmp_path, launcher, [EXAMPLES / example])
    records = streamxf.list_checkpoints(run)
    assert [record.name for record in records][-2:] == ["step-9", "step-12"]
    assert len(records) <= 3, "the last 2, and the best one"
    assert all(record.metrics.keys() == {"loss"} for record in records)
    saved = [run / record.name / part for record in records]
    assert {stored_chain(path, None) for path in saved} == {"floatzip+checksum"}

    whole = tmp_path / "whole.ckpt"
    convert = [sys.executable, "-m", "lightning.fabric.utilities.consolidate_checkpoint", saved[-1]]
    finished([*convert, "--output_file", whole], STREAMXF_CHAIN="floatzip+checksum")
    loaded = torch.load(whole, weights_only=True)
    weights = loaded["state_dict" if part else "model"]
    with streamxf.Checkpoint(saved[-1]) as checkpoint:
        for name, weight in weights.items():
            (item,) = (item for item in checkpoint.stored if item.endswith(name))
            assert torch.equal(weight, checkpoint[item].read())


@pytest.mark.slow
@pytest.mark.usefixtures("lightning")
@pytest.mark.parametrize(
    ("launcher", "example", "files"),
    [
        ([sys.executable], "lightning_trainer.py", "lightning.ckpt"),
        (two_ranks(), "lightning_fsdp2.py", "lightning.ckpt/*"),
        ([sys.executable], "fabric_fsdp2.py", "*"),
    ],
    ids=["trainer", "fsdp2", "fabric"],
)
def test_damaged_and_resumed(launcher: list[str | Path], example: str, files: str, tmp_path: Path) -> None:
    assert_falls_back(tmp_path, [*launcher, EXAMPLES / example], files)


@pytest.fixture
def train(tmp_path: Path, lightning: Any) -> Callable[..., Any]:
    """Trains for 16 batches, validated after each 4 of them; the run's folder and the losses."""
    callback = pytest.importorskip("streamxf.integrations.lightning_callback").ManagedCheckpoint

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(4, 1)
            self.losses: dict[int, float] = {}

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.layer(torch.full((2, 4), float(batch_idx))).square().mean()
            self.losses[self.trainer.fit_loop.total_batch_idx] = float(loss)
            self.log("loss", loss)
            return loss

        def validation_step(self, *_: Any) -> None:
            self.log("val_loss", float(self.global_step), batch_size=1)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    def run(
        name: str,
        *callbacks: Any,
        save: Any,
        then: Any = None,
        keep: Any = None,
        chain: Any = None,
        keys: Any = None,
        resume: bool = True,
        **arguments: Any,
    ) -> dict[int, float]:
        model = Model()
        with streamxf.CheckpointManager(tmp_path / name, chain, keys=keys, save=save, keep=keep) as manager:
            managed = callback(manager)
            trainer = lightning.Trainer(
                accelerator="cpu",
                logger=False,
                enable_progress_bar=False,
                callbacks=[managed, *callbacks],
                **{"max_epochs": 2, "val_check_interval": 4, **arguments},
            )
            path = managed.latest() if resume else None
            trainer.fit(model, range(8), range(1), ckpt_path=path)
            if then is not None:
                then(trainer, model)
        return model.losses

    return run


def test_metrics_of_a_validation_are_added(tmp_path: Path, train: Callable[..., Any]) -> None:
    train("run", save=3)
    records = streamxf.list_checkpoints(tmp_path / "run")
    assert [record.step for record in records] == [3, 6, 9, 12, 15, 16], "and the last step"
    validated = {record.step: record.metrics.get("val_loss") for record in records}
    assert validated == {3: None, 6: None, 9: None, 12: 12.0, 15: None, 16: 16.0}
    assert all("loss" in record.metrics for record in records)


def test_a_validation_after_training_changes_no_metrics(tmp_path: Path, train: Callable[..., Any]) -> None:
    def validate(trainer: Any, model: Any) -> None:
        with torch.no_grad():
            model.layer.weight.zero_()
        model.validation_step = lambda *_: model.log("val_loss", -1.0, batch_size=1)
        trainer.validate(model, range(1))
        assert trainer.callback_metrics["val_loss"] == -1

    train("run", save=4, then=validate)
    assert streamxf.list_checkpoints(tmp_path / "run")[-1].metrics["val_loss"] == 16


@pytest.mark.parametrize("damaged", [False, True])
def test_the_best_is_the_managers(damaged: bool, tmp_path: Path, train: Callable[..., Any]) -> None:
    loaded = []

    def validate(trainer: Any, model: Any) -> None:
        model.on_load_checkpoint = lambda checkpoint: loaded.append(checkpoint["global_step"])
        if damaged:
            flip(tmp_path / "run" / "step-16" / "lightning.ckpt")
        trainer.validate(model, range(1), ckpt_path="best")
        trainer.validate(dataloaders=range(1))  # which means the best, too

    keep = streamxf.Retention(best=2, metric="val_loss", mode="max")
    train("run", save=4, keep=keep, then=validate, plugins=[ChainCheckpointIO()])
    assert loaded == ([12, 12] if damaged else [16, 16])


def test_without_a_metric_there_is_no_best(train: Callable[..., Any]) -> None:
    def validate(trainer: Any, model: Any) -> None:
        with pytest.raises(ValueError, match="not configured to save the best"):
            trainer.validate(model, range(1), ckpt_path="best")

    train("run", save=4, then=validate)


@pytest.mark.parametrize("plugins", [[], [ChainCheckpointIO()]], ids=["stock", "chain"])
@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
def test_resumed_from_the_one_before_a_damaged_one(
    damage: Callable[[Path], None], plugins: list[Any], tmp_path: Path, train: Callable[..., Any]
) -> None:
    whole = train("run", save=5, plugins=plugins)
    damage(tmp_path / "run" / "step-16" / "lightning.ckpt")
    again = train("run", save=5, plugins=plugins)
    assert again == {15: whole[15]}
    assert train("run", save=5, plugins=plugins) == {}, "it has been saved again"


def test_the_plugin_knows_the_digest_of_what_it_wrote(tmp_path: Path, train: Callable[..., Any]) -> None:
    """So that damage is found even if the job was killed before anybody has read the file again."""
    train("run", save=100, plugins=[ChainCheckpointIO()])
    folder = tmp_path / "run" / "step-16"
    record = Note.parse((folder / ".streamxf-commit").read_bytes()).content
    digest = hashlib.sha256((folder / "lightning.ckpt").read_bytes()).hexdigest()
    assert [(file["path"], file["sha256"]) for file in record["files"]] == [("lightning.ckpt", digest)]
    assert not [*folder.glob(".streamxf-note-*")]


def test_with_the_key_only_what_it_authenticates_counts(tmp_path: Path, train: Callable[..., Any]) -> None:
    given = {"save": 5, "chain": "encrypt", "keys": KEY, "plugins": [ChainCheckpointIO(CHAIN, keys=KEY)]}
    whole = train("run", **given)
    train("other", save=100, plugins=[ChainCheckpointIO(CHAIN, keys=KEY)])
    shutil.rmtree(tmp_path / "run" / "step-16")
    shutil.copytree(tmp_path / "other" / "step-16", tmp_path / "run" / "step-16")
    assert train("run", **given) == {15: whole[15]}, "it resumed from its own"


def test_a_job_that_only_encrypts_does_not_start_over(tmp_path: Path, train: Callable[..., Any]) -> None:
    private, signer = streamxf.PrivateKey.generate(), streamxf.SigningKey.generate()
    public = [streamxf.Encrypt(private.public, signer=signer)]
    train("run", save=10, chain=public, plugins=[ChainCheckpointIO(public)])
    with pytest.raises(KeyMissingError, match="holds no key that reads it"):
        train("run", save=10, chain=public, plugins=[ChainCheckpointIO(public)])
    plugin = ChainCheckpointIO(public, keys=private)
    assert train("run", save=10, chain=public, keys=private, plugins=[plugin]) == {}


@pytest.mark.slow
@pytest.mark.usefixtures("lightning")
def test_killed_in_the_middle_of_a_file(tmp_path: Path) -> None:
    run, script = tmp_path / "run", EXAMPLES / "lightning_trainer.py"
    killed_at("waiting", [sys.executable, WAITING, "streamxf.stream.encoder:StreamWriter._end", "2", script, run])
    (draft,) = (run / "step-6").glob(".lightning.ckpt.*.tmp")
    size = draft.stat().st_size
    assert size > 100_000
    assert [(record.name, record.kind) for record in streamxf.list_checkpoints(run)][-1] == ("step-6", "unfinished")
    lines = finished([sys.executable, script, run])
    assert "resumed from step 3" in lines
    assert not [*run.glob("*/.*.tmp")]
    for record in streamxf.list_checkpoints(run):
        assert record.bytes == (run / record.name / "lightning.ckpt").stat().st_size


def test_steps_of_several_batches(tmp_path: Path, train: Callable[..., Any]) -> None:
    train("run", save=3, accumulate_grad_batches=2)
    assert [record.step for record in streamxf.list_checkpoints(tmp_path / "run")] == [3, 6, 8]


def test_who_starts_over_in_a_run_is_told_how_to_go_on(tmp_path: Path, train: Callable[..., Any]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "training starts over")
        train("run", save=5, max_epochs=1)
        train("run", save=5)
    with pytest.warns(UserWarning, match=r"has step 16: .* ckpt_path=managed\.latest\(\)"):
        train("run", save=5, resume=False)
    module = pytest.importorskip("streamxf.integrations.lightning_callback")
    with streamxf.CheckpointManager(tmp_path / "run") as manager, warnings.catch_warnings():
        warnings.simplefilter("error")
        other_rank = SimpleNamespace(global_step=0, is_global_zero=False)
        module.ManagedCheckpoint(manager).on_train_start(other_rank, None)


@pytest.mark.parametrize("first", ["from streamxf.integrations.lightning_callback import ManagedCheckpoint", ""])
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_the_trainer_knows_it_whatever_is_imported_first(package: str, first: str, tmp_path: Path) -> None:
    """Otherwise it adds a ModelCheckpoint of its own."""
    pytest.importorskip(package)
    code = f"""
import sys
{first}
import {package} as lightning
import streamxf
from streamxf.integrations.lightning_callback import ManagedCheckpoint
managed = ManagedCheckpoint(streamxf.CheckpointManager(sys.argv[1]))
trainer = lightning.Trainer(accelerator="cpu", logger=False, callbacks=[managed])
print([type(each).__name__ for each in trainer.checkpoint_callbacks])
"""
    assert finished([sys.executable, "-c", code, tmp_path])[-1] == "['ManagedCheckpoint']"


def test_stopped_early_and_continued(tmp_path: Path, train: Callable[..., Any], lightning: Any) -> None:
    whole = train("whole", save=100)
    stopping = lightning.callbacks.EarlyStopping("val_loss", patience=1, mode="min")
    first = train("run", stopping, save=5)
    assert [record.step for record in streamxf.list_checkpoints(tmp_path / "run")] == [5, 8]
    assert {**first, **train("run", save=5)} == whole
    assert [record.step for record in streamxf.list_checkpoints(tmp_path / "run")] == [5, 8, 10, 15, 16]


def test_told_to_end(tmp_path: Path, train: Callable[..., Any], lightning: Any) -> None:
    """Lightning itself would end without a save, or not end before the steps that it must take."""

    class Told(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 6:
                signal.raise_signal(signal.SIGTERM)

    train("run", Told(), save=5, min_steps=16)
    assert [record.step for record in streamxf.list_checkpoints(tmp_path / "run")] == [5, 7]


def test_saves_in_the_background_are_refused(train: Callable[..., Any], lightning: Any) -> None:
    plugin = lightning.plugins.io.AsyncCheckpointIO(ChainCheckpointIO())
    with pytest.raises(ParameterError, match="AsyncCheckpointIO"):
        train("run", save=3, plugins=[plugin])


@pytest.mark.parametrize("package", ["lightning", "lightning_fabric"])
def test_lightning_takes_it_for_its_own(package: str, lightning: Any) -> None:
    """It comes under two names, whose classes differ."""
    fabric = pytest.importorskip("lightning.fabric" if package == "lightning" else package)
    io = ChainCheckpointIO()
    assert isinstance(io, fabric.plugins.CheckpointIO)
    assert fabric.Fabric(plugins=[io], accelerator="cpu").strategy.checkpoint_io is io


@pytest.mark.parametrize("place", ["folder/new", "url"])
def test_saved_and_loaded(place: str, tmp_path: Path) -> None:
    path = f"memory://{tmp_path}/last.ckpt" if place == "url" else tmp_path / place / "last.ckpt"
    io = ChainCheckpointIO(CHAIN, keys=KEY)
    io.save_checkpoint(STATE, path)
    assert_same(io.load_checkpoint(path), STATE)
    for other, error in (OTHER_KEY, KeyMissingError), (None, KeyMissingError):
        with pytest.raises(error):
            ChainCheckpointIO("encrypt" if other else None, keys=other).load_checkpoint(path)
    io.remove_checkpoint(path)
    io.remove_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        io.load_checkpoint(path)


@pytest.mark.parametrize("place", ["folder", "url"])
def test_only_what_is_named_is_removed(place: str, tmp_path: Path) -> None:
    run = f"memory://{tmp_path}/exp" if place == "url" else f"{tmp_path}/exp"
    io = ChainCheckpointIO()
    names = [f"{kind}/last.ckpt" for kind in ("1", "2", "[12]", "*")]
    for name in names:
        io.save_checkpoint(STATE, run + name)
    for name in ("[12]/last.ckpt", "*"):  # a file, and a folder
        io.remove_checkpoint(run + name)
    for name in names[:2]:
        assert_same(io.load_checkpoint(run + name), STATE)
    for name in names[2:]:
        with pytest.raises(FileNotFoundError):
            io.load_checkpoint(run + name)


def test_what_others_need_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(run := open_storage(f"memory://{tmp_path}/run"), "step-1", "step-2")
    path = run.child("step-1").label()
    ChainCheckpointIO().remove_checkpoint(path)
    assert "step-2 needs it: `streamxf consolidate`" in caplog.text
    assert_holds(run.child("step-2"))
    streamxf.consolidate(run.child("step-2"))
    ChainCheckpointIO().remove_checkpoint(path)
    assert [*run.folders()] == ["step-2"]


def test_of_a_link_only_the_link_is_removed(tmp_path: Path) -> None:
    io = ChainCheckpointIO()
    for name in ("own/last.ckpt", "other.ckpt"):
        io.save_checkpoint(STATE, tmp_path / name)
    for name, target in {"folder": "own", "file": "other.ckpt"}.items():
        (tmp_path / name).symlink_to(tmp_path / target)
        io.remove_checkpoint(tmp_path / name)
        assert not os.path.lexists(tmp_path / name)
    for name in ("own/last.ckpt", "other.ckpt"):
        assert_same(io.load_checkpoint(tmp_path / name), STATE)


@pytest.mark.parametrize("place", ["folder", "url"])
def test_a_save_that_fails_leaves_the_old_one(place: str, tmp_path: Path) -> None:
    path = f"memory://{tmp_path}/last.ckpt" if place == "url" else tmp_path / "last.ckpt"
    io = ChainCheckpointIO()
    io.save_checkpoint(STATE, path)
    with pytest.raises(Exception, match="pickle"):
        io.save_checkpoint({**STATE, "epoch": 4, "lambda": lambda: None}, path)
    assert_same(io.load_checkpoint(path), STATE)


def test_lightnings_own_checkpoints_load_where_nothing_is_encrypted(tmp_path: Path) -> None:
    for zipped in True, False:  # as its TorchCheckpointIO does, and as torch did before 1.6
        torch.save(STATE, tmp_path / "own.ckpt", _use_new_zipfile_serialization=zipped)
        assert_same(ChainCheckpointIO().load_checkpoint(tmp_path / "own.ckpt"), STATE)


@pytest.mark.parametrize("begin", [b"", b"\xd2SXK\r\n\x1a\n", b"\0" * 8])
def test_a_file_that_begins_otherwise_is_damaged(begin: bytes, tmp_path: Path) -> None:
    path, io = tmp_path / "last.ckpt", ChainCheckpointIO()
    io.save_checkpoint(STATE, path)
    path.write_bytes(begin and begin + path.read_bytes()[8:])
    with pytest.raises(ContainerError, match=r"it was damaged \[file .*last\.ckpt\]"):
        io.load_checkpoint(path)


@pytest.mark.parametrize("place", ["folder", "url"])
def test_a_chain_that_encrypts_loads_no_plaintext(place: str, tmp_path: Path) -> None:
    folder = f"memory://{tmp_path}" if place == "url" else f"{tmp_path}"
    ChainCheckpointIO("zstd").save_checkpoint(STATE, f"{folder}/plain.ckpt")
    private, signer = streamxf.PrivateKey.generate(), streamxf.SigningKey.generate()
    public = ChainCheckpointIO([streamxf.Encrypt(private.public, signer=signer)])
    public.save_checkpoint(STATE, f"{folder}/encrypted.ckpt")
    torch.save(STATE, tmp_path / "own.ckpt")
    for io in ChainCheckpointIO([streamxf.Encrypt(KEY)]), ChainCheckpointIO(CHAIN, keys=KEY), public:
        for path in f"{folder}/plain.ckpt", tmp_path / "own.ckpt":
            with pytest.raises(PolicyError, match="the chain in use encrypts"):
                io.load_checkpoint(path)
        with pytest.raises(KeyMissingError):
            io.load_checkpoint(f"{folder}/encrypted.ckpt")
    reader = ChainCheckpointIO([streamxf.Encrypt(private.public, signer=signer)], keys=private)
    assert_same(reader.load_checkpoint(f"{folder}/encrypted.ckpt"), STATE)
    other = streamxf.Encrypt(private.public, signer=streamxf.SigningKey.generate())
    with pytest.raises(PolicyError, match="who is not trusted"):
        ChainCheckpointIO([other], keys=private).load_checkpoint(f"{folder}/encrypted.ckpt")


def test_the_keys_of_the_chain_load(tmp_path: Path) -> None:
    io = ChainCheckpointIO([streamxf.Encrypt(KEY)])
    io.save_checkpoint(STATE, tmp_path / "last.ckpt")
    assert_same(io.load_checkpoint(tmp_path / "last.ckpt"), STATE)


def test_in_the_background(tmp_path: Path, lightning: Any) -> None:
    io = lightning.plugins.io.AsyncCheckpointIO(ChainCheckpointIO(CHAIN, keys=KEY))
    io.save_checkpoint(STATE, tmp_path / "last.ckpt")
    io.teardown()
    assert_same(io.load_checkpoint(tmp_path / "last.ckpt"), STATE)


def test_a_model_is_loaded_from_an_open_file(tmp_path: Path, lightning: Any) -> None:
    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(7, 3)

    model, io = Model(), ChainCheckpointIO(CHAIN, keys=KEY)
    trainer = lightning.Trainer(plugins=[io], accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    loaded = Model.load_from_checkpoint(streamxf.open(tmp_path / "model.ckpt", keys=KEY))
    assert torch.equal(loaded.layer.weight, model.layer.weight)
    for path in str(tmp_path / "model.ckpt"), tmp_path / "model.ckpt", f"file://{tmp_path}/model.ckpt":
        for load in Model.load_from_checkpoint, lightning.plugins.io.TorchCheckpointIO().load_checkpoint:
            with pytest.raises(Exception, match=r"Unsupported operand") as caught:
                load(path)
            assert "streamxf.open(path, keys=...)" in caught.value.__notes__[0]
    (tmp_path / "other.ckpt").write_bytes(b"nothing")
    for name, kind in {"other.ckpt": UnpicklingError, "none.ckpt": FileNotFoundError}.items():
        with pytest.raises(kind) as caught:
            Model.load_from_checkpoint(tmp_path / name)
        assert not hasattr(caught.value, "__notes__")


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ChainError):
        ChainCheckpointIO("encrypt+zstd", keys=KEY)
    with pytest.raises(ParameterError):
        ChainCheckpointIO("zstd", keys=KEY)
    with pytest.raises(ParameterError, match="storage_options"):
        ChainCheckpointIO().save_checkpoint(STATE, tmp_path / "a.ckpt", storage_options={})


def test_distributed_checkpoints_under_install(tmp_path: Path) -> None:
    """The functions with which FSDPStrategy saves, loads and consolidates. torch's FSDP1 around them needs a GPU."""
    fsdp = pytest.importorskip("lightning.fabric.strategies.fsdp")
    state, target = {"model": {"w": torch.randn(50, 8)}}, {"model": {"w": torch.zeros(50, 8)}}
    with streamxf.install(CHAIN, keys=KEY):
        fsdp._distributed_checkpoint_save(state, tmp_path / "saved")
        fsdp._distributed_checkpoint_load(target, tmp_path / "saved")
        whole = pytest.importorskip("lightning.fabric.utilities.load")._load_distributed_checkpoint
        torch.save({"epoch": 3}, tmp_path / "saved" / "meta.pt")
        assert_same(whole(tmp_path / "saved"), {"model": state["model"], "epoch": 3})
    assert_same(target, state)
    assert stored_chain(tmp_path / "saved") == CHAIN
