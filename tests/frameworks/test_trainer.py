"""docs/examples/trainer_fsdp2.py, trainer_archive.py and trl_sft.py, killed, damaged and resumed."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import streamxf
from streamxf.errors import ParameterError
from tests.dcp.helpers import stored_chain

from .damaged import assert_falls_back, flip, truncate
from .killed import EXAMPLES, assert_managed, assert_resumes, two_ranks

pytestmark = pytest.mark.slow

ON_CPU = Path(__file__).parent / "accelerate_on_cpu.py"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def test_fsdp2(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    safetensors = pytest.importorskip("safetensors.torch")
    utils = pytest.importorskip("accelerate.utils")
    script = [ON_CPU, EXAMPLES / "trainer_fsdp2.py"]
    run = assert_managed(tmp_path, two_ranks(), script, **OFFLINE)
    records = streamxf.list_checkpoints(run)
    assert [record.name for record in records][-2:] == ["checkpoint-9", "checkpoint-12"]
    assert len(records) <= 3, "the last 2, and the best one"
    assert all({"loss", "learning_rate"} <= record.metrics.keys() for record in records)
    parts = [path.parent for path in run.glob("checkpoint-*/*/.metadata")]
    assert len(parts) == 2 * len(records)
    assert {stored_chain(part, None) for part in parts} == {"floatzip+checksum"}

    model = run / "checkpoint-12" / "pytorch_model_fsdp_0"
    with streamxf.install("floatzip+checksum"):
        utils.merge_fsdp_weights(str(model), str(tmp_path / "merged"))
    merged = safetensors.load_file(tmp_path / "merged" / "model.safetensors")
    with streamxf.Checkpoint(model) as checkpoint:
        assert {*merged} == {name.removeprefix("model.") for name in checkpoint.stored}
        assert all(torch.equal(merged[name], checkpoint[f"model.{name}"].read()) for name in merged)
        assert len(checkpoint.stored["model.lm_head.weight"].chunks) == 2, "each process saves a part"


def test_trl(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    folder = assert_managed(tmp_path, two_ranks(), [ON_CPU, EXAMPLES / "trl_sft.py"], **OFFLINE)
    parts = [f"checkpoint-{step}/{part}" for step in (9, 12) for part in ("pytorch_model_fsdp_0", "optimizer_0")]
    assert {stored_chain(folder / part, None) for part in parts} == {"floatzip+checksum"}


@pytest.mark.parametrize(
    ("script", "files", "inside"),
    [
        ([ON_CPU, EXAMPLES / "trainer_fsdp2.py"], "*/*.distcp", ""),
        ([ON_CPU, EXAMPLES / "trl_sft.py"], "*/*.distcp", ""),
        ([EXAMPLES / "trainer_archive.py"], "*.distcp", "archive"),
    ],
    ids=["fsdp2", "trl", "archive"],
)
def test_damaged_and_resumed(script: list[Path], files: str, inside: str, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    assert_falls_back(tmp_path, two_ranks(*script), files, inside=inside, **OFFLINE)


@pytest.fixture
def make_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a Trainer on one device, which evaluates at every second step."""
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    def make(*callbacks: Any, **arguments: Any) -> Any:
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
        rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (8, 4))]
        given = {"save_strategy": "no", "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 100, **arguments}
        return transformers.Trainer(
            transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=32, **sizes)),
            transformers.TrainingArguments(
                tmp_path / "run", max_steps=6, use_cpu=True, report_to="none", disable_tqdm=True, **given
            ),
            train_dataset=rows,
            eval_dataset=rows,
            callbacks=[*callbacks],
        )

    return make


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt"])
def test_without_fsdp(
    file: str, damage: Callable[[Path], None], tmp_path: Path, make_trainer: Callable[..., Any]
) -> None:
    """Its files know no chain; the manager does the rest all the same."""
    callbacks = pytest.importorskip("streamxf.integrations.transformers")
    early = pytest.importorskip("transformers").EarlyStoppingCallback(1, early_stopping_threshold=1e9)
    run = tmp_path / "run"
    with streamxf.CheckpointManager(run, name="checkpoint-{}", save=3) as manager:
        trainer = make_trainer(early, metric_for_best_model="loss")
        trainer.add_callback(callbacks.ManagerCallback(manager))
        trainer.train()
    assert trainer.state.global_step == 4, "the second evaluation was no better"
    third, fourth = streamxf.list_checkpoints(run)
    assert (third.name, fourth.name) == ("checkpoint-3", "checkpoint-4")
    assert "loss" in third.metrics
    assert "eval_loss" not in third.metrics, "that was evaluated at step 2"
    evaluated = [logs["eval_loss"] for logs in trainer.state.log_history if "eval_loss" in logs]
    assert fourth.metrics["eval_loss"] == evaluated[-1]

    damage(run / "checkpoint-4" / file)
    with streamxf.CheckpointManager(run, name="checkpoint-{}", save=3) as manager:
        assert manager.latest() == str(run / "checkpoint-3"), "the newer one is not as it was saved"
        trainer = make_trainer()
        trainer.add_callback(callbacks.ManagerCallback(manager))
        trainer.train(resume_from_checkpoint=manager.latest())
        assert trainer.state.global_step == 6
    assert [record.step for record in streamxf.list_checkpoints(run)] == [3, 4, 6]


def test_who_starts_over_in_a_run_is_told_how_to_go_on(tmp_path: Path, make_trainer: Callable[..., Any]) -> None:
    callbacks = pytest.importorskip("streamxf.integrations.transformers")

    def train(resume: bool) -> None:
        with streamxf.CheckpointManager(tmp_path / "run", name="checkpoint-{}", save=3) as manager:
            last = manager.latest() if resume else None
            make_trainer(callbacks.ManagerCallback(manager)).train(resume_from_checkpoint=last)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", "training starts over")
        train(True)
        train(True)
    with pytest.warns(UserWarning, match=r"has step 6: .*resume_from_checkpoint=manager\.latest\(\)"):
        train(False)


def test_who_decides_when_to_save(tmp_path: Path, make_trainer: Callable[..., Any]) -> None:
    callbacks = pytest.importorskip("streamxf.integrations.transformers")
    with streamxf.CheckpointManager(tmp_path / "run", name="checkpoint-{}") as manager:
        trainer = make_trainer(callbacks.ManagerCallback(manager), save_strategy="steps")
        with pytest.raises(ParameterError, match="save_strategy"):
            trainer.train()
        trainer = make_trainer(callbacks.ManagerCallback(manager), save_total_limit=2)
        with pytest.raises(ParameterError, match=r"keep=.*save_total_limit"):
            trainer.train()
    for name, folder in ("step-{}", "run"), ("checkpoint-{}", "elsewhere"):
        with streamxf.CheckpointManager(tmp_path / folder, name=name) as manager:
            trainer = make_trainer(callbacks.ManagerCallback(manager))
            with pytest.raises(ParameterError, match="the manager expects"):
                trainer.train()


def test_archive(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = assert_resumes(tmp_path, two_ranks(EXAMPLES / "trainer_archive.py"), **OFFLINE)
    archive = folder / "archive"
    assert streamxf.latest(archive) == str(archive / "checkpoint-12")
    assert {stored_chain(path, None) for path in archive.glob("checkpoint-*")} == {"floatzip+checksum"}
    streamxf.unpack(archive / "checkpoint-12", tmp_path / "unpacked")
    last = folder / "scratch" / "checkpoint-12"
    files = {path.name: path.read_bytes() for path in last.iterdir()}
    assert {*files} >= {"model.safetensors", "optimizer.pt", "rng_state_0.pth", "rng_state_1.pth", "trainer_state.json"}
    assert {path.name: path.read_bytes() for path in (tmp_path / "unpacked").iterdir()} == files
