"""What commands print with ``--json`` is what docs/json-schema.json says."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from streamxf.cli.run import COMMANDS
from streamxf.cli.show import JSON_VERSION
from streamxf.keys import PrivateKey, SigningKey, write_key
from tests.cli.command import Run
from tests.cli.conftest import flip_bit
from tests.cli.schema import SCHEMA, check, resolved

FEW = ["--chain", "zstd", "--chain", ""]
OBJECTS = [name for name in SCHEMA["$defs"] if name not in ("fields", "commands")]


@pytest.fixture
def world(tmp_path: Path, plain: Path, encrypted: Path, key_file: Path) -> Path:
    """A folder with what commands need."""
    tensors = {"a.weight": torch.arange(500.0), "a.bias": torch.zeros(5), "b": torch.arange(3)}
    save_file(tensors, tmp_path / "model.safetensors")
    save_file({**tensors, "b": torch.tensor([0, 1, 3])}, tmp_path / "other.safetensors")
    torch.save({"nan": torch.tensor([float("nan"), 1.0]), "n": 3}, tmp_path / "nan.pt")
    torch.save({"nan": torch.tensor([0.0, 1.0]), "n": "text"}, tmp_path / "not nan.pt")
    (tmp_path / "file.sxf").write_bytes(
        streamxf.encode(b"data" * 1000, "zstd+encrypt", keys=streamxf.Key(bytes(range(32))))
    )
    write_key(tmp_path / "team.pub", PrivateKey.generate().public)
    write_key(tmp_path / "sign.key", SigningKey.generate())
    damaged = tmp_path / "damaged"
    save({"w": torch.arange(9000.0), "step": 7}, storage_writer=streamxf.FileSystemWriter(damaged))
    flip_bit(damaged)
    for step in (1, 2):
        shutil.copytree(plain, tmp_path / "run" / f"step-{step}")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_there_is_one_definition_for_each_command_that_prints_json():
    assert SCHEMA["$defs"]["commands"].keys() == set(COMMANDS) - {"cat"}
    assert SCHEMA["$defs"]["fields"]["properties"]["json_version"]["const"] == JSON_VERSION


def test_every_field_is_used_and_every_name_is_a_field():
    fields = SCHEMA["$defs"]["fields"]["properties"].keys()
    objects = [*SCHEMA["$defs"]["commands"].values(), *(SCHEMA["$defs"][name] for name in OBJECTS)]
    named = set()
    for each in objects:
        assert each["$ref"] == "#/$defs/fields", "so a field of one name has one type everywhere"
        assert set(each["required"]) <= set(each["propertyNames"]["enum"])
        named |= set(each["propertyNames"]["enum"])
    assert named == fields
    for field in fields:
        assert resolved(f"#/$defs/fields/properties/{field}")["description"].endswith(".")


@pytest.mark.parametrize(
    "arguments",
    [
        *("inspect plain --items --tree", "inspect encrypted --tree --depth 1"),
        *("inspect model.safetensors --values --items", "inspect nan.pt --values", "inspect file.sxf"),
        *("diff model.safetensors model.safetensors", "diff model.safetensors other.safetensors --values"),
        *("diff nan.pt not|nan.pt", "diff plain damaged", "verify plain", "verify damaged", "verify encrypted"),
        *("verify file.sxf", "verify model.safetensors", "salvage plain new", "salvage damaged new"),
        *("clean plain --dry-run", "list run", "latest run", "latest empty", "forget run --keep last=1 --dry-run"),
        *("forget run --keep last=1 --yes", "pack model.safetensors new"),
        *("pack model.safetensors new --recipient file:team.pub --signer file:sign.key", "unpack plain new.pt"),
        *("unpack plain new --format dcp", "transcode plain new --chain zstd", "keygen new.key"),
        *(
            "keygen new.key --kind hybrid",
            "viewer new.html",
            "sign plain --signer file:sign.key",
            "rename plain layer.*=block.*",
        ),
        "rekey encrypted --key file:test.key --recipient file:team.pub --allow-unsigned",
        *("rekey file.sxf --key file:test.key --recipient file:test.key", "recipients encrypted"),
        *("recipients file.sxf --key file:test.key", "check run", "codecs"),
    ],
)
def test_a_command(run: Run, world: Path, monkeypatch: pytest.MonkeyPatch, arguments: str):
    monkeypatch.chdir(world)
    words = [word.replace("|", " ") for word in arguments.split()]
    done = run(*words, "--json")
    assert "error" not in done.json, done.json
    check(done.json, SCHEMA["$defs"]["commands"][words[0]])
    check(done.json, SCHEMA)


@pytest.mark.parametrize(
    "arguments", ["verify nothing", "verify", "nosuch", "unpack damaged new.pt", "diff plain plain -k x"]
)
def test_a_failure(run: Run, world: Path, monkeypatch: pytest.MonkeyPatch, arguments: str):
    monkeypatch.chdir(world)
    done = run(*arguments.split(), "--json")
    assert done.code in (1, 2)
    check(done.json, SCHEMA["$defs"]["failed"])
    assert done.json["error"]["exit_code"] == done.code


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"more": 1}, "the name 'more'"),
        ({"ok": 1}, "is none of"),
        ({"save_ids": {"a": "b"}}, "is none of"),
        ({"damaged": [{}]}, "lacks"),
        ({"files": -1}, "files"),
    ],
)
def test_the_check_finds_what_is_wrong(run: Run, plain: Path, change: dict[str, Any], says: str):
    facts = run("verify", plain, "--json").json
    check(facts, SCHEMA["$defs"]["commands"]["verify"])
    with pytest.raises(AssertionError, match=says):
        check(facts | change, SCHEMA["$defs"]["commands"]["verify"])
