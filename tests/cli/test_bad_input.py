"""What every command does with what it cannot use: one line that says what and what to do, the documented exit code, no
traceback, and nothing changed.
"""

import io
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.cli.command import Done, Run
from tests.cli.world import build, fingerprint

NEVER = ("Traceback", "KeyError", "AttributeError", "TypeError", "error of streamxf's own")
READING = (
    *("inspect", "verify", "clean", "recipients", "rekey", "rename"),
    *("salvage", "diff", "pack", "unpack", "transcode"),
)
ON_RUNS = ("list  {}", "latest  {}", "forget  {}  --keep  last=1  --yes")


@dataclass(frozen=True)
class Case:
    """A command that must fail.

    Attributes
    ----------
    arguments : str
        Words that are parted by two blanks, since names may have single ones.
    code : int
    says : str
        A part of its line.
    """

    arguments: str
    code: int
    says: str

    @property
    def words(self) -> list[str]:
        return [word for word in self.arguments.split("  ") if word]

    def __str__(self) -> str:
        return "_".join(self.words).replace("/", "|")


def on(path: str, command: str) -> str:
    """A command that reads `path`, with what it needs besides."""
    more = {
        "clean": "  --yes",
        "rekey": "  --key  file:right.key  --recipient  file:wrong.key",
        "rename": "  *=x.*",
        "salvage": "  new",
        "diff": "  plain",
        "pack": "  new  --chain  zstd",
        "unpack": "  new.safetensors",
        "transcode": "  new  --chain  zstd",
    }
    return f"{command}  {path}{more.get(command, '')}"


TO_RESTORE = ".metadata]; next: restore this file from a copy; if there is none, see `streamxf salvage"
TO_VERIFY = "; next: `streamxf verify` lists all damage, `streamxf salvage` saves the rest"
CASES = [
    # nothing there
    *(Case(on("nothing", command), 2, "there is no file or folder 'nothing'") for command in READING),
    Case("diff  plain  nothing", 2, "there is no file or folder 'nothing'"),
    *(Case(command.format("nothing"), 2, "there is no file or folder 'nothing'") for command in ON_RUNS),
    *(Case(command.format("memory://nothing/there"), 2, "there is no such") for command in ON_RUNS),
    *(Case(on("memory://nothing/there", command), 2, "there is no") for command in ("inspect", "verify", "clean")),
    *(Case(on("nosuch://bucket/step", command), 2, "nosuch") for command in ("inspect", "verify", "pack")),
    # no checkpoint
    *(Case(on("empty", command), 2, "no checkpoint") for command in READING),
    *(Case(on("text.txt", command), 2, "checkpoint") for command in READING),
    *(Case(command.format("text.txt"), 2, "not a folder of checkpoints") for command in ON_RUNS),
    Case("latest  empty", 1, "no complete checkpoint"),
    *(Case(on("folder with a file", command), 2, "no checkpoint") for command in ("inspect", "verify", "pack")),
    *(Case(on("pipe", command), 2, "") for command in ("inspect", "diff", "pack")),
    # half a checkpoint
    *(Case(on("plain without metadata", command), 1, "") for command in ("inspect", "unpack")),
    *(Case(on("plain with cut metadata", command), 1, TO_RESTORE) for command in ("inspect", "unpack")),
    Case(on("plain without metadata", "diff"), 2, ""),
    Case(on("plain with cut metadata", "diff"), 2, TO_RESTORE),
    *(Case(on("plain without data", command), 1, TO_VERIFY) for command in ("unpack", "transcode")),
    *(
        Case(on("plain with a flipped bit", command), 1, f", block 0]{TO_VERIFY}")
        for command in ("unpack", "transcode")
    ),
    Case(on("stock with a flipped bit", "pack"), 1, f"item layers.0.weight]{TO_VERIFY}"),
    *(Case(on("stock with cut metadata", command), 1, TO_RESTORE) for command in ("inspect", "pack")),
    *(Case(on("cut.safetensors", command), 1, "cut.safetensors") for command in ("inspect", "pack")),
    *(Case(on("huge header.safetensors", command), 1, "header") for command in ("inspect", "pack")),
    *(Case(on("cut.pt", command), 1, "cut.pt") for command in ("inspect", "pack")),
    *(Case(on(name, "diff"), 2, name) for name in ("cut.safetensors", "cut.pt")),
    *(Case(on("empty.safetensors", command), 1, "empty.safetensors") for command in ("inspect", "pack")),
    # keys
    *(Case(on("encrypted", command), 2, "key") for command in ("salvage", "diff", "unpack", "transcode")),
    *(
        Case(f"{on('encrypted', command)}  --key  file:wrong.key", code, "key")
        for command, code in (("verify", 2), ("diff", 2), ("unpack", 2), ("transcode", 2), ("salvage", 2))
    ),
    Case("rekey  encrypted  --recipient  file:wrong.key", 2, "--key"),
    Case("recipients  encrypted  --add  file:wrong.key", 2, "--key"),
    Case("recipients  encrypted  --remove  0123456789abcdef", 2, "--key"),
    Case("recipients  plain  --key  file:right.key  --add  file:wrong.key", 1, "encrypt"),
    Case("verify  encrypted  --key  file:nothing.key", 2, "nothing.key"),
    Case("verify  encrypted  --key  file:open.key", 2, "chmod 600"),
    Case("verify  encrypted  --key  file:none.key", 2, "none.key"),
    Case("verify  encrypted  --key  file:signing.key", 2, "opens nothing"),
    Case("verify  encrypted  --key  env:NO_SUCH_VARIABLE", 2, "NO_SUCH_VARIABLE"),
    Case("verify  encrypted  --key  right.key", 2, "did you mean 'file:right.key'?"),
    Case("verify  encrypted  --key  prompt", 2, "no terminal to ask at; give the key as file:PATH or env:VARIABLE"),
    Case("keygen  new.key  --passphrase", 2, "no terminal to ask at; set STREAMXF_PASSPHRASE"),
    Case("recipients  encrypted  --key  file:right.key  --add  file:signing.key", 2, "--add number 1: this is the"),
    Case("recipients  plain", 1, "make an encrypted copy (`streamxf transcode --recipient`)"),
    Case(
        "unpack  plain  new.pt  --only  nothing", 2, "no item has such a name; streamxf inspect --items lists the names"
    ),
    Case("verify  plain  --key  file:right.key", 1, "not encrypted"),
    Case("verify  encrypted  --trust  file:signing.key", 2, "SigningKey"),
    Case("keygen  right.key", 2, "never overwritten"),
    Case("keygen  no/such/folder/new.key", 2, "does not exist"),
    Case("keygen  new.key  --public  new.pub", 2, "no public half"),
    # chains
    *(
        Case(f"{command}  {source}  new  --chain  {chain}", 2, says)
        for command, source in (("pack", "good.safetensors"), ("transcode", "plain"))
        for chain, says in (
            *[("zst", "no codec 'zst'"), ("zstd:level=99", "level"), ("zstd:level=high", "level")],
            *[("zstd:lvl=3", "it takes: level"), ("encrypt+zstd", "key"), ("acme.delta", "acme.delta")],
            ("zstd:", "zstd:"),
        )
    ),
    Case("pack  good.safetensors  new  --chain  zstd+encrypt", 2, "key"),
    # targets
    Case("pack  good.safetensors  plain  --chain  zstd", 2, "plain"),
    Case("transcode  plain  stock  --chain  zstd", 2, "stock"),
    Case("unpack  plain  good.safetensors", 2, "good.safetensors"),
    Case("unpack  plain  new  --format  zip", 2, "zip"),
    Case("salvage  plain  stock", 2, "stock"),
    Case("unpack  plain  text.txt/new.safetensors", 2, "text.txt"),
    # options and commands
    Case("nosuch", 2, "no such command 'nosuch'"),
    Case("verify", 2, "missing argument 'PATH...'"),
    Case("verify  plain  --nosuch", 2, "no such option"),
    Case("verify  plain  --require  nothing", 2, "nothing"),
    Case("verify  plain  --expect-save-id  0123", 2, "0123"),
    Case("clean  plain", 2, "--yes"),
    Case("cat  plain", 2, "the item that you name"),
    *(
        Case(f"clean  plain  --min-age  {age}  --yes", 2, "is not a time")
        for age in ("soon", "2x", "h", "-1", "1h30m", "nan")
    ),
    *(Case(f"verify  plain  --max-expansion={value}", 2, "--max-expansion") for value in ("0", "-1", "1.5", "many")),
    Case("transcode  plain  new  --in-place", 2, "--in-place"),
    Case("transcode  plain  new  --file-size  much", 2, "'much' is not a size"),
    Case("inspect  plain  --html  no/such/folder/page.html", 2, "no/such/folder"),
]


@pytest.fixture(scope="module")
def world() -> Iterator[Path]:
    root = Path(mkdtemp(prefix="streamxf-world-"))
    build(root)
    yield root
    shutil.rmtree(root)


@pytest.fixture(autouse=True)
def unchanged(world: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(world)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    before = fingerprint(world)
    yield
    assert fingerprint(world) == before


def check(done: Done, case: Case) -> None:
    lines = done.err.splitlines()
    assert len(lines) == 1, done.err or done.out
    assert lines[0].startswith("streamxf"), lines
    assert not any(word in done.err for word in NEVER), done.err
    assert case.says in lines[0], lines
    assert done.code == case.code, (done.code, lines)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bad_input(run: Run, case: Case):
    check(run(*case.words), case)


@pytest.mark.parametrize("case", CASES[::5], ids=str)
def test_as_json(run: Run, case: Case):
    done = run(*case.words, "--json")
    if case.arguments == "nosuch" or case.words[0] == "cat":  # whose output is what a file holds
        return
    error = done.json["error"]
    assert done.code == case.code == error["exit_code"]
    assert case.says in error["message"]


@pytest.mark.parametrize("command", READING)
def test_an_empty_path(run: Run, command: str):
    check(
        run(*("" if word == "EMPTY" else word for word in Case(on("EMPTY", command), 2, "").words)),
        Case(command, 2, "''"),
    )
