"""The reader in JavaScript: all vectors but those that it leaves to streamxf, in Node and in Chromium."""

import base64
import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from streamxf.tools import inspect
from tests.vectors.described import SUBJECTS, Entry, bytes_of, is_stock, vectors
from tests.vectors.test_vectors import digest_of, elements_of

PAGE = Path(inspect.__file__).parent / "page"
RUNNER = Path(__file__).with_name("runner.js")
# For some files the reader meets a neighbour of the rule first.
NEIGHBOURS = {("M1", "index"), ("index", "M1"), ("Z4", "floatzip")}

Results = list[dict[str, Any]]


def not_here(entry: Entry) -> bool:
    """Whether the reader leaves it to streamxf: hybrid keys, passphrases, pickles."""
    kinds = {key["kind"] for key in entry.get("keys", ())} | {*re.findall("hpke-mlkem.*?(?=:)", entry.get("text", ""))}
    stock = is_stock(bytes_of(entry.get("files", {}).get(".metadata", {"base64": ""})))
    passphrase = "passphrase" in entry or entry.get("text", "").startswith("streamxf-protected:")
    return bool(kinds - {"aeskw", "hpke-x25519"}) or stock or passphrase or bool(entry.get("elements"))


@cache
def packed() -> str:
    """All vectors as the runner takes them, each file in base64."""

    def text(file: dict[str, str]) -> str:
        return base64.b64encode(bytes_of(file)).decode()

    def flat(entry: Entry) -> Entry:
        files = {name: text(file) for name, file in entry.get("files", {}).items()}
        return entry | ({"file": text(entry["file"])} if "file" in entry else {"files": files})

    return json.dumps({subject: [flat(entry) for entry in vectors(subject).values()] for subject in SUBJECTS})


def in_node(folder: Path) -> Results:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed; on Debian: apt-get install --no-install-recommends nodejs")
    version = subprocess.run([node, "--version"], check=True, capture_output=True, text=True).stdout
    if int(version[1:].partition(".")[0]) < 20:
        pytest.skip(f"Node {version.strip()} has no X25519; 20 and later have")
    (folder / "vectors.json").write_text(packed())
    command = [node, str(RUNNER), str(PAGE / "reader.js"), str(folder / "vectors.json")]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    results: Results = json.loads(found.stdout)
    return results


def in_chromium(folder: Path) -> Results:
    pytest.importorskip("selenium", reason="Selenium is not installed: pip install selenium")
    from tests.tools.inspect.browser import HOW_TO, browser, installed

    if installed() is None:
        pytest.skip(HOW_TO)
    scripts = "".join(f"<script>{path.read_text()}</script>" for path in (PAGE / "zstd.js", PAGE / "reader.js", RUNNER))
    (folder / "page.html").write_text(f"<!doctype html><meta charset=utf-8>{scripts}", encoding="utf-8")
    with browser() as driver:
        driver.set_script_timeout(120)
        driver.get((folder / "page.html").as_uri())
        results: Results = driver.execute_async_script(
            "runVectors(JSON.parse(arguments[0])).then(arguments[1])", packed()
        )
    return results


@pytest.mark.parametrize("run", [in_node, in_chromium])
def test_all_vectors(run: Callable[[Path], Results], tmp_path: Path) -> None:
    results = run(tmp_path)
    assert [result["name"] for result in results] == [name for subject in SUBJECTS for name in vectors(subject)]
    wrong = [result for result in results if not right(vectors(result["subject"])[result["name"]], result)]
    assert wrong == []
    outcomes = [(result["subject"], result["outcome"]) for result in results]
    assert {*outcomes} >= {(subject, outcome) for subject in SUBJECTS for outcome in ("read", "refused")}
    assert sum(outcome == "not here" for _, outcome in outcomes) < len(outcomes) / 8


def right(entry: Entry, result: dict[str, Any]) -> bool:
    """Whether that came of a vector which has to come of it."""
    if not_here(entry):
        return result["outcome"] == "not here" or ("breaks" in entry and result["outcome"] == "refused")
    if "breaks" in entry:
        rule = (entry["breaks"], result["rule"])
        return result["outcome"] == "refused" and (rule[0] == rule[1] or rule in NEIGHBOURS)
    if result["outcome"] != "read":
        return False
    if result["subject"] == "checkpoint":
        return same_items(entry["holds"], result["found"])
    found = unmapped(result["found"]) if result["subject"] == "note" else result["found"]
    return bool(found == entry["holds"])


def unmapped(value: Any) -> Any:
    """What the runner makes of JSON, whose objects are lists of pairs."""
    if isinstance(value, dict):
        return {name: unmapped(inner) for name, inner in value["map"]}
    return [unmapped(inner) for inner in value] if isinstance(value, list) else value


_SAID = "size", "sha256", "value"


def same_items(expected: Entry, found: list[Any]) -> bool:
    if [name for name, _ in found] != list(expected):
        return False
    for name, streams in found:
        wanted = expected[name]
        if "loads" in wanted:
            stream = base64.b64decode(streams[0]["base64"])
            if torch.load(io.BytesIO(stream), weights_only=True) != wanted["loads"]:
                return False
            continue
        for stream, chunk in zip(streams, wanted.get("chunks", [wanted]), strict=True):
            if "elements" in chunk:
                if digest_of(elements_of(base64.b64decode(stream["base64"]))) != chunk["elements"]:
                    return False
            elif [stream.get(key) for key in _SAID] != [chunk.get(key) for key in _SAID]:
                return False
    return True
