"""``streamxf cat CHECKPOINT ITEM``: items, and parts of tensors, of which only the blocks that are needed are read."""

import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import streamxf
from streamxf import Checksum
from streamxf.cli import look
from streamxf.keys import write_key
from tests.altered import flip
from tests.cli import preloaded
from tests.cli.command import Run
from tests.dcp.helpers import KEY, data_files, full_chain, save

STATE: dict[str, Any] = {
    "w": torch.randn(40, 300, 5).bfloat16(),
    "list[0]": torch.arange(6).view(2, 3),
    "list[0][1]": torch.tensor(7),
    "empty": torch.zeros(0, 3),
    "packed": torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "options": {1, 2},
    "step": 7,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(STATE, tmp_path / "checkpoint", [Checksum()], block_size=1 << 16)
    return tmp_path / "checkpoint"


def piped(*arguments: object) -> tuple[int, bytes, str]:
    done = preloaded.run(["cat", *arguments])
    return done.returncode, os.fsencode(done.stdout), done.stderr


def test_bytes_of_a_part(path: Path) -> None:
    code, out, err = piped(path, "w[10:20, :, 3]")
    assert (code, err) == (0, "")
    assert out == STATE["w"][10:20, :, 3].contiguous().view(torch.uint8).numpy().tobytes()
    assert piped(path, "w")[1] == STATE["w"].view(torch.uint8).numpy().tobytes()
    assert piped(path, "empty") == (0, b"", "")


def test_an_object_is_what_torch_saves(path: Path) -> None:
    code, out, _ = piped(path, "options")
    assert code == 0
    assert torch.load(io.BytesIO(out), weights_only=True) == {1, 2}


def test_a_value_as_text_and_as_it_is_stored(run: Run, tmp_path: Path) -> None:
    texts: dict[str, tuple[Any, str]] = {
        "step": (7, "7"),
        "lr": (1e-4, "0.0001"),
        "best": (float("nan"), "nan"),
        "none": (None, "null"),
        "name": ("a\x1b\n\u00fc", '"a\\u001b\\n\\u00fc"'),
        "plain": ([[True, "b"], 2.5], '[[true, "b"], 2.5]'),
        "betas": ([(0.9, 0.99)], "[(0.9, 0.99)]"),
        "raw": (b"\0", r"b'\x00'"),
        "numbered": (({1: "a"},), "({1: 'a'},)"),
    }
    save({f"v.{name}": value for name, (value, _) in texts.items()}, tmp_path / "values", [Checksum()])
    with streamxf.Checkpoint(tmp_path / "values") as checkpoint:
        names = [*checkpoint]
        assert {*names} == {f"v.{name}" for name in texts}
        for name in names:
            wanted = texts[name.removeprefix("v.")][1]
            assert run.exits(0, "cat", tmp_path / "values", name, "--text", err="").out == f"{wanted}\n"
    assert piped(tmp_path / "values", "v.step") == (0, b"\x07", "")


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        *[("w[1, -3:, :2]", STATE["w"][1, -3:, :2]), ("w[ 5 : 40 : 7 ,..., 1]", STATE["w"][5:40:7, :, 1])],
        *[("w[...]", STATE["w"]), ("w[-1, 0, 0]", STATE["w"][-1, 0, 0]), ("w[40:]", STATE["w"][40:])],
        *[("list[0]", STATE["list[0]"]), ("list[0][0]", STATE["list[0]"][0]), ("list[0][1]", STATE["list[0][1]"])],
        ("list[0][1, :]", STATE["list[0]"][1]),
    ],
)
def test_text_and_names_in_brackets(run: Run, path: Path, item: str, wanted: torch.Tensor) -> None:
    done = run.exits(0, "cat", path, item, "--text", err="")
    rows = wanted.reshape(-1, wanted.shape[-1] if wanted.ndim else 1) if wanted.numel() else []
    assert done.out.splitlines() == [" ".join(map(str, row.tolist())) for row in rows]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["w[10:x]"], "'10:x' is no index: write 3, 10:20"),
        (["w[]"], "'' is no index"),
        (["w[1_0]"], "'1_0' is no index"),
        (["w[٣]"], "is no index"),
        (["w[99999999999999999999]"], "is no index"),
        (["w[40]"], "[40]: index 40 is out of bounds for a dimension of 40; the tensor's shape is [40, 300, 5]"),
        (["w[::0]"], "'::0' is no index"),
        (["w[::-1]"], "a step backwards is not supported"),
        (["w[0, 0, 0, 0]"], "4 indices for a tensor of 3 dimensions"),
        (["w[..., ...]"], "at most one ellipsis"),
        (["w[0"], "no item is called 'w[0'; streamxf inspect --items lists"),
        (["w0]"], "no item is called"),
        (["[0]"], "no item is called '[0]'"),
        (["v"], "no item is called 'v'"),
        (["options[0]"], "this item is an object"),
        (["options", "--text"], "this item is an object of torch.save"),
        (["step[0]"], "this item is an object"),
        (["packed", "--text"], "leave --text out"),
    ],
)
def test_what_cannot_be_shown(run: Run, path: Path, arguments: list[str], says: str) -> None:
    done = run.exits(2, "cat", path, *arguments, out="")
    assert says in done.err
    assert str(path) in done.err


def test_only_blocks_that_hold_the_part_are_read(run: Run, path: Path) -> None:
    with streamxf.Checkpoint(path) as checkpoint:
        (place,) = checkpoint.stored["w"].places
    flip(path / place.file, place.at + place.size - 1000)  # in the last of its two blocks
    assert run("cat", path, "w[:5, 0]", "--text").code == 0
    assert "item w" in run.exits(1, "cat", path, "w[-1]", "--text", out="").err


def test_encrypted(run: Run, tmp_path: Path) -> None:
    save({"w": torch.arange(4)}, tmp_path / "secret", full_chain())
    write_key(tmp_path / "key", KEY)
    assert run("cat", tmp_path / "secret", "w[1:3]", "--text").code == 2
    done = run("cat", tmp_path / "secret", "w[1:3]", "--text", "--key", f"file:{tmp_path / 'key'}")
    assert (done.code, done.out, len(data_files(tmp_path / "secret"))) == (0, "1 2\n", 1)


def test_text_comes_piece_by_piece(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "_TEXT_STEP", 7 * 2)
    monkeypatch.setattr(look, "_STEP", 7 * 2)
    # the first has the end of one block, and the beginning of the next
    for part in ("w[21:23]", "w[3, 10:40:3]", "w[:2, 7:18, 1]", "w[5, :, 2]", "w[1, 1, 1]", "w[::9, 200]"):
        wanted = eval(part, {"w": STATE["w"]})
        done = run("cat", path, part, "--text")
        rows = wanted.reshape(-1, wanted.shape[-1] if wanted.ndim else 1)
        assert done.out == "".join(f"{' '.join(map(str, row.tolist()))}\n" for row in rows)
        with streamxf.Checkpoint(path) as checkpoint:
            pieces = list(look._item(checkpoint, part, False))
        assert max(map(len, pieces)) <= 14
        assert b"".join(map(bytes, pieces)) == wanted.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_a_large_tensor_is_never_in_memory_as_text(tmp_path: Path) -> None:
    save({"large": torch.rand(500_000), "small": torch.rand(1)}, tmp_path / "checkpoint", [Checksum()])
    program = (
        "import sys, resource; from streamxf.cli import look; from streamxf.cli.__main__ import main; "
        "look._TEXT_STEP = 2**16; code = main(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr); sys.exit(code)"
    )
    used = []
    for item in ("small", "large"):
        done = preloaded.script(program, "cat", tmp_path / "checkpoint", item, "--text")
        used.append(int(done.stderr))
    assert done.stdout.count(" ") == 499_999  # in 10 MB, which take 60 MB to make
    assert used[1] - used[0] < 16_000  # KiB


def test_damage_ends_text_with_an_error(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with streamxf.Checkpoint(path) as checkpoint:
        (place,) = checkpoint.stored["w"].places
    flip(path / place.file, place.at + place.size - 1000)  # in the last of its two blocks
    monkeypatch.setattr(look, "_TEXT_STEP", 300)
    done = run.exits(1, "cat", path, "w", "--text")
    assert len(done.err.splitlines()) == 1
    assert "item w, block 1" in done.err
    whole = "".join(f"{' '.join(map(str, row.tolist()))}\n" for row in STATE["w"].reshape(-1, 5))
    assert len(done.out) > 1000
    assert whole.startswith(done.out)
