"""The Python of README.md and of every page of docs/ runs as it stands, in an empty folder; and names in their text are
those of the source.

A page whose blocks build on one another says so, and they run in its order; on any other page each runs by itself.
Blocks with a title are files, which the tests of their pages compare with the repository's own, or run as processes.
"""

import ast
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import streamxf
from streamxf.cli.__main__ import main
from tests.code_blocks import FENCE, Block, blocks_of
from tests.dcp.s3_server import storage as s3_options
from tests.test_layers import LAYERS

ROOT = Path(__file__).parent.parent
PAGES = [page for page in sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))) if page.name != "CHANGELOG.md"]
TOGETHER = "from top to bottom"
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
LANGUAGES = {"python", "sh", "text", "toml", "yaml", "json"}
# what a page makes with a tool of the shell and then uses in Python
SHELL = {"docs/security.md": "openssl"}
# files that a page shows, and the tests that run them
SCRIPTS = {"train.py": "keys/test_write_only_nodes.py", "evaluate.py": "keys/test_write_only_nodes.py"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def python_blocks(page: Path) -> list[Block]:
    return [block for block in blocks_of(page.read_text()) if block.language == "python" and block.title is None]


def run(block: Block, page: Path, namespace: dict[str, Any]) -> None:
    """Run a block, moved to its line in the page, so that a traceback shows where it stands."""
    exec(compile("\n" * block.line + block.code, str(page), "exec"), namespace)


def test_blocks_keep_their_lines():
    text = 'a\n```python\nx\n```\n```sh\nls\n```\n```python title="y.py"\ny\n```\n'
    assert list(blocks_of(text)) == [
        Block("python", None, "x\n", 2),
        Block("sh", None, "ls\n", 5),
        Block("python", "y.py", "y\n", 8),
    ]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_of_a_kind_that_is_known(page: Path):
    text = page.read_text()
    blocks = list(blocks_of(text))
    assert text.count("```") == 2 * len(blocks), "a fence that is not read here would not be run either"
    assert {block.language for block in blocks} <= LANGUAGES


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_are_shown_as_they_are(page: Path):
    for block in blocks_of(page.read_text()):
        if block.title in SCRIPTS:
            assert block.title in (ROOT / "tests" / SCRIPTS[block.title]).read_text()
        elif block.title is not None and page not in GUIDES and block.language != "text":
            assert block.code in (ROOT / block.title).read_text(), f"{block.title} differs from the page"


def test_the_page_on_codecs_shows_one_whole():
    page = ROOT / "docs" / "writing-a-codec.md"
    shown = {block.title: block.code for block in blocks_of(page.read_text())}
    file = "tests/acme_codec/src/acme_codec/delta.py"
    assert shown[file] == (ROOT / file).read_text()
    assert {"tests/acme_codec/pyproject.toml", "tests/acme_codec/tests/test_delta.py"} < shown.keys()


def test_the_policy_on_the_page_on_security_is_for_encrypting_alone():
    page = ROOT / "docs" / "security.md"
    (policy,) = (json.loads(block.code) for block in blocks_of(page.read_text()) if block.language == "json")
    (statement,) = policy["Statement"]
    assert statement["Action"] == "kms:Encrypt"
    assert statement["Resource"] in page.read_text().replace(json.dumps(statement["Resource"]), "", 1)


@pytest.fixture
def uninstalled() -> Iterator[None]:
    """What a page installs ends with it."""
    yield
    while (left := streamxf.installed()) is not None:
        left.uninstall()


@pytest.mark.usefixtures("uninstalled")
@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page) and page not in GUIDES], ids=name_of)
def test_it_runs_as_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tool = SHELL.get(name_of(page))
    if tool is not None and shutil.which(tool) is None:
        pytest.skip(f"the page uses {tool}")
    text = page.read_text()
    together = TOGETHER in text
    namespace: dict[str, Any] = {}
    ran = 0
    for number, block in enumerate(blocks_of(text)):
        if not ran or not together:
            folder = tmp_path / str(number)
            folder.mkdir(exist_ok=True)
            monkeypatch.chdir(folder)
            namespace = {"__name__": "__page__"}
        if block.language == "python" and block.title is None:
            run(block, page, namespace)
            ran += 1
        elif block.language == "sh" and tool is not None and tool in block.code:
            subprocess.run(block.code, shell=True, check=True)
    assert ran == len(python_blocks(page)) > 0


@pytest.mark.s3
@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_a_guide_runs_with_its_commands_and_files(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    monkeypatch.chdir(tmp_path)
    if "$BUCKET" in page.read_text():
        options = s3_options(request.getfixturevalue("endpoint"))
        monkeypatch.setitem(import_module("fsspec.config").conf, "s3", options)  # where the environment is read once
        monkeypatch.setenv("BUCKET", f"s3://checkpoints/{tmp_path.name}")
    namespace: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks_of(page.read_text()):
        if block.title is not None:
            Path(block.title).write_text(block.code)
        elif block.language == "python":
            run(block, page, namespace)
        else:
            assert block.language == "sh"
            for line in block.code.splitlines():
                command, _, fails = line.partition(" || ")
                if command.startswith("streamxf "):
                    words = shlex.split(os.path.expandvars(command), comments=True)
                    assert main(words[1:]) == (1 if fails else 0), line
                else:
                    subprocess.run(["bash", "-c", line.replace("python", shlex.quote(sys.executable))], check=True)


def test_what_the_first_page_shows_runs_again_in_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        namespace: dict[str, Any] = {"__name__": "__page__"}
        for block in python_blocks(ROOT / "README.md"):
            run(block, ROOT / "README.md", namespace)


def test_pages_that_need_it_say_that_their_blocks_build_on_one_another():
    for page in PAGES:
        if TOGETHER in page.read_text():
            assert page in GUIDES or len(python_blocks(page)) > 1, f"{page.name} has no blocks that could"


def test_every_name_at_the_top_is_in_the_reference():
    """And what else is there, is where its heading says."""
    places = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert len(places) > 60
    named = {}
    for place in places:
        home, _, name = place.rpartition(".")
        named[name] = getattr(import_module(home), name)
    assert len(streamxf.__all__) <= 56
    for name in {*streamxf.__all__} - {"StreamxfError"}:  # one of the errors
        assert getattr(streamxf, name) is named[name], name
    for place in places:
        home, _, name = place.rpartition(".")
        if home.startswith("streamxf.keys."):
            assert getattr(streamxf.keys, name) is named[name], name


def test_the_reference_names_members_that_are_there():
    text = (ROOT / "docs" / "api.md").read_text()
    found = re.findall(r"^::: (\S+)\.(\w+)\n +options:\n +members: \[(.*)\]$", text, re.MULTILINE)
    assert len(found) > 1
    for home, name, members in found:
        for member in members.split(", "):
            assert hasattr(getattr(import_module(home), name), member), f"{name}.{member}"


# -- what the text says about the source -----------------------------------------------------------------

DESIGN = ROOT / "docs" / "design.md"
SPAN = re.compile(r"`([^`]+)`")
OWN = ("streamxf/", "tests/", "docs/", "benchmarks/")
PATH = re.compile(r"[\w.-]+(/[\w.-]+)*(/|\.(py|c|md|json|toml|yml))")


def spans_of(page: Path) -> set[str]:
    """What stands in backticks, but for blocks of code."""
    return {" ".join(span.split()) for span in SPAN.findall(FENCE.sub("", page.read_text()))}


def literals() -> str:
    """Everything that could have a name of streamxf's as a string: codecs, loggers, groups of entry points."""
    return "\n".join(path.read_text() for path in [*(ROOT / "streamxf").rglob("*.py"), ROOT / "pyproject.toml"])


def exists(name: str) -> bool:
    """Whether a dotted name is a module or an attribute of one; modules that need other packages are not imported."""
    if find_spec_of(name):
        return True
    home, _, attribute = name.rpartition(".")
    try:
        return hasattr(import_module(home), attribute)
    except ModuleNotFoundError as error:
        if (error.name or "streamxf").startswith("streamxf"):
            return False
        source = (ROOT / home.replace(".", "/")).with_suffix(".py").read_text()
        return re.search(rf"^(class|def) {attribute}\b", source, re.MULTILINE) is not None


def find_spec_of(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ModuleNotFoundError, ImportError):
        return False


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_of_the_repository_exist(page: Path):
    spans = {span for span in spans_of(page) if PATH.fullmatch(span)}
    for span in spans:
        if span.startswith(OWN) and not span.startswith("benchmarks/results/"):  # what a run leaves
            assert (ROOT / span).exists(), f"{page.name}: there is no {span}"


def test_design_names_files_that_exist():
    homes = (ROOT, ROOT / "streamxf")
    for span in spans_of(DESIGN):
        if PATH.fullmatch(span):
            assert any((home / span).exists() for home in homes), f"design.md: there is no {span}"


def test_design_has_the_layers_of_the_source():
    rows = re.findall(
        r"^\| (`[^|]+`) \| ", DESIGN.read_text().partition("## Layers")[2].partition("## ")[0], re.MULTILINE
    )
    shown = [sorted(name.removesuffix("/").removesuffix(".py") for name in SPAN.findall(row)) for row in rows]
    assert shown[::-1] == [sorted(layer) for layer in LAYERS], "the table in docs/design.md, from top to bottom"


def test_design_names_what_the_source_defines():
    known = set(re.findall(r"\w+", literals()))
    text = DESIGN.read_text().partition("## Traps")[0]  # where the names are other libraries'
    names = {span.removesuffix("()") for span in SPAN.findall(text) if re.fullmatch(r"\w+(\(\))?", span)}
    unknown = sorted(names - known)
    assert names
    assert not unknown


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_of_streamxf_exist(page: Path):
    source = literals()
    for name in {
        name for span in spans_of(page) for name in re.findall(r"(?<![\w./-])streamxf(?:\.[a-zA-Z_]\w*)+", span)
    }:
        known = f'"{name}"' in source or f'"{name}.' in source or exists(name)
        assert known, f"{page.name}: there is no {name}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_calls_in_the_text_have_arguments_that_exist(page: Path):
    for span in spans_of(page):
        for name, keyword in keywords_of(span):
            parameters = inspect.signature(getattr(streamxf, name)).parameters.values()
            names = {parameter.name for parameter in parameters}
            assert keyword in names or any(each.kind == each.VAR_KEYWORD for each in parameters), f"{page.name}: {span}"


def keywords_of(span: str) -> Iterator[tuple[str, str]]:
    """The keyword arguments of calls of streamxf's public names, in a span that is Python."""
    try:
        tree = ast.parse(span.replace("...", "None"))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).removeprefix("streamxf.")
            if name in streamxf.__all__ and name.isidentifier():
                yield from ((name, each.arg) for each in node.keywords if each.arg is not None)


def test_targets_of_make_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for span in spans_of(page):
            if (named := re.match(r"(?:\w+=\w+ )?make ([\w-]+)", span)) is not None:
                assert named[1] in targets, f"{page.name}: {span}"


# what README.md or docs/guarantees.md claims, and the line of a published table that has it
CLAIMS = {
    "two thirds of their size": ("benchmarks/sizes.md", r"\| Gaussian, bf16 \|.* <= 0\.668 \| yes \| yes \|"),
    "more than a gigabyte a second per core": (
        "benchmarks/times.md",
        r"\| streamxf\.floatzip \| 0\.\d+ \(",
    ),  # of 1 GiB
    "234 of 246 points": ("reliability/killed.md", r"\| one rank, one thread \| stock DCP \| 246 \| 234 \|"),
    "4 threads at 67 of 164 faults": ("reliability/failing.md", r"\| 4 threads \| stock DCP \| 164 \|.* \| 67 \| 0 \|"),
    "at every point tried": (
        "reliability/killed.md",
        r"\| one rank, one thread \| streamxf, chain full \| \d+ \| 0 \|",
    ),
    "64 GiB in less than 0.01 s": ("benchmarks/rekey.md", r"\| 64 GiB of data \|.* \| rekey, to a key \| 0\.00 \("),
    "512 MiB of bf16 weights": ("benchmarks/save_load.md", r"512 MiB of Gaussian weights"),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_published_table_has_what_a_page_claims(claim: str):
    table, pattern = CLAIMS[claim]
    text = "".join((ROOT / page).read_text() for page in ("README.md", "docs/guarantees.md"))
    assert claim in " ".join(re.sub(r"[\[\]>]", "", text).split())
    assert re.search(pattern, (ROOT / "docs" / table).read_text())
