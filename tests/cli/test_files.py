"""Commands on files that ``streamxf.open`` wrote: inspect, verify, cat, rekey, recipients."""

import subprocess
import sys
from pathlib import Path

import pytest

import streamxf
from streamxf.keys import Key, write_key
from tests.altered import flip
from tests.cli.command import Run

DATA = bytes(range(256)) * 8000


@pytest.fixture
def open_file(tmp_path: Path) -> Path:
    path = tmp_path / "open.sxf"
    with streamxf.open(path, "wb", chain="zstd+checksum", block_size=2**16) as file:
        file.write(DATA)
    return path


@pytest.fixture
def sealed_file(tmp_path: Path, key: Key) -> Path:
    path = tmp_path / "sealed.sxf"
    path.write_bytes(streamxf.encode(DATA, "zstd+encrypt", keys=key))
    return path


def piped(*arguments: object, given: bytes = b"") -> tuple[int, bytes, str]:
    """A command in a process of its own, whose output is bytes."""
    command = [sys.executable, "-m", "streamxf.cli", *map(str, arguments)]
    done = subprocess.run(command, input=given, capture_output=True)
    return done.returncode, done.stdout, done.stderr.decode()


# -- cat -----------------------------------------------------------------------------------------------------------


def test_cat_gives_what_was_written(open_file: Path, sealed_file: Path, key_file: Path):
    assert piped("cat", open_file) == (0, DATA, "")
    assert piped("cat", f"file://{open_file}") == (0, DATA, "")
    assert piped("cat", sealed_file, "--key", f"file:{key_file}") == (0, DATA, "")


def test_cat_reads_a_pipe(sealed_file: Path, key_file: Path):
    assert piped("cat", "-", "--key", f"file:{key_file}", given=sealed_file.read_bytes()) == (0, DATA, "")


def test_cat_of_what_is_damaged_gives_nothing_that_is_wrong(tmp_path: Path):
    path = tmp_path / "large.sxf"
    data = DATA * 20
    with streamxf.open(path, "wb", chain="checksum") as file:
        file.write(data)
    flip(path, -(2**20))
    code, out, err = piped("cat", path)
    assert code == 1
    assert data.startswith(out)
    assert "block CRC does not match" in err
    assert str(path) in err


def test_cat_that_cannot_begin(run: Run, open_file: Path, sealed_file: Path, plain: Path, key_file: Path):
    for arguments, says in (
        ([sealed_file], "key"),
        ([open_file, "--key", f"file:{key_file}"], "not encrypted"),
        ([plain], "unpack"),
        ([plain / "nothing"], "there is no file or folder"),
    ):
        assert says in run.exits(2 if says != "not encrypted" else 1, "cat", *arguments, out="").err
    foreign = next(plain.glob("*.distcp"))  # of which nothing is damaged
    assert run("cat", foreign).code == 2
    assert piped("cat", "-", given=foreign.read_bytes())[::2] == (
        2,
        "streamxf cat: this is not a file that streamxf.open wrote: it begins with other bytes\n",
    )


def test_cat_into_a_full_disk(open_file: Path):
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "streamxf.cli", "cat", str(open_file)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


# -- inspect -------------------------------------------------------------------------------------------------------


def test_inspect(run: Run, open_file: Path):
    done = run.exits(0, "inspect", open_file, err="")
    assert done.out.splitlines()[0].startswith(f"{open_file}: streamxf file, 1 file, ")
    assert "2.0 MiB decoded, " in done.out
    assert "32 blocks of 64.0 KiB through zstd+checksum" in done.out
    found = run("inspect", open_file, "--json").json
    assert (found["format"], found["raw_bytes"], found["blocks"]) == ("streamxf file", len(DATA), 32)
    assert found["file_bytes"] == open_file.stat().st_size


def test_inspect_of_what_is_encrypted(run: Run, sealed_file: Path, key: Key, key_file: Path, tmp_path: Path):
    found = run("inspect", sealed_file, "--json").json
    assert found["key_ids"] == [f"aeskw:{key.id}"]
    assert "not authenticated" in found["notes"][0]
    assert not run("inspect", sealed_file, "--key", f"file:{key_file}", "--json").json["notes"]
    write_key(tmp_path / "other.key", Key.generate())
    assert run("inspect", sealed_file, "--key", f"file:{tmp_path / 'other.key'}").code == 2


def test_inspect_makes_no_page_of_a_file(run: Run, open_file: Path, tmp_path: Path):
    run.exits(2, "inspect", open_file, "--html", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


# -- verify --------------------------------------------------------------------------------------------------------


def test_verify(run: Run, open_file: Path, sealed_file: Path, key_file: Path):
    assert run("verify", open_file).code == 0
    assert run("verify", sealed_file, "--key", f"file:{key_file}").code == 0
    flip(open_file)
    done = run.exits(1, "verify", open_file)
    assert f"{open_file.name}, block " in done.out
    assert "salvage" not in done.out


# -- rekey and recipients ------------------------------------------------------------------------------------------


def test_rekey(run: Run, sealed_file: Path, key_file: Path, tmp_path: Path):
    new = Key.generate()
    write_key(tmp_path / "new.key", new)
    done = run("rekey", sealed_file, "--key", f"file:{key_file}", "--recipient", f"file:{tmp_path / 'new.key'}")
    assert (done.code, done.out) == (0, f"rewritten: {sealed_file.name}\n")
    assert streamxf.decode(sealed_file.read_bytes(), keys=new) == DATA
    assert run("cat", sealed_file, "--key", f"file:{key_file}").code == 2
    assert run("recipients", sealed_file, "--json").json["whole"] == [{"kind": "aeskw", "id": new.id}]
