"""The reader in JavaScript: all vectors but those that it leaves to streamxf, in Node and in Chromium."""

import base64
import io
import json
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import zstandard

from streamxf import CheckpointWriter
from streamxf.checkpoint.memory import SaveMemory
from streamxf.tools import inspect
from tests.forge import frame_of, split_metadata
from tests.reference_codecs import Refused
from tests.vectors.described import READERS, SUBJECTS, Entry, bytes_of, is_stock, notation, unpack, vectors
from tests.vectors.test_decoders_agree import flips, mended, verdict
from tests.vectors.test_vectors import digest_of, elements_of

PAGE = Path(inspect.__file__).parent / "page"
RUNNER = Path(__file__).with_name("runner.js")
# For some files the reader meets a neighbour of the rule first.
NEIGHBOURS = {("M1", "index"), ("index", "M1"), ("Z4", "floatzip")}

Results = list[dict[str, Any]]


def not_here(entry: Entry) -> bool:
    """Whether the reader leaves it to streamxf: hybrid keys, passphrases, pickles."""
    kinds = {key["kind"] for key in entry.get("keys", ())} | {"hybrid" for key in entry.get("trust", ()) if key[64:]}
    kinds |= {*re.findall(r"streamxf-secret:(hpke-mlkem768-x25519|ed25519\+mldsa65):", entry.get("text", ""))}
    stock = is_stock(bytes_of(entry.get("files", {}).get(".metadata", {"base64": ""})))
    passphrase = "passphrase" in entry or entry.get("text", "").startswith("streamxf-protected:")
    hybrid = any(len(key) > 64 for key in entry.get("trust", ())) or "-secret:ed25519+" in entry.get("text", "")
    more = "elements" in entry or "form" in entry
    return bool(kinds - {"aeskw", "hpke-x25519"}) or stock or passphrase or hybrid or more


def packed(found: dict[str, list[Entry]]) -> str:
    """Vectors as the runner takes them, each file in base64."""

    def text(file: dict[str, str]) -> str:
        return base64.b64encode(bytes_of(file)).decode()

    def flat(entry: Entry) -> Entry:
        files = {name: text(file) for name, file in entry.get("files", {}).items()}
        return entry | ({"file": text(entry["file"])} if "file" in entry else {"files": files})

    return json.dumps({subject: [flat(entry) for entry in entries] for subject, entries in found.items()})


ALL = {subject: [*vectors(subject).values()] for subject in SUBJECTS}


def in_node(folder: Path, found: dict[str, list[Entry]]) -> Results:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed; on Debian: apt-get install --no-install-recommends nodejs")
    version = subprocess.run([node, "--version"], check=True, capture_output=True, text=True).stdout
    if int(version[1:].partition(".")[0]) < 20:
        pytest.skip(f"Node {version.strip()} has no X25519; 20 and later have")
    (folder / "vectors.json").write_text(packed(found))
    command = [node, str(RUNNER), str(PAGE / "reader.js"), str(folder / "vectors.json")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results: Results = json.loads(done.stdout)
    return results


def in_chromium(folder: Path, found: dict[str, list[Entry]]) -> Results:
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
            "runVectors(JSON.parse(arguments[0])).then(arguments[1])", packed(found)
        )
    return results


@pytest.mark.parametrize("run", [in_node, in_chromium])
def test_all_vectors(run: Callable[[Path, dict[str, list[Entry]]], Results], tmp_path: Path) -> None:
    results = run(tmp_path, ALL)
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
        rule = (entry["breaks"], result.get("rule"))
        return result["outcome"] == "refused" and (rule[0] == rule[1] or rule in NEIGHBOURS)
    if result["outcome"] != "read":
        return False
    if result["subject"] == "checkpoint":
        return same_items(entry["holds"], result["found"])
    found = result["found"]
    if result["subject"] in ("note", "value"):
        found = unmapped(found) if result["subject"] == "note" else notation(untyped(found))
    return bool(found == entry["holds"])


def untyped(value: Any) -> Any:
    """A value from what the runner makes of it."""
    if isinstance(value, list):
        return [untyped(each) for each in value]
    if not isinstance(value, dict):
        return value
    [(kind, found)] = value.items()
    if kind == "map":
        return {untyped(key): untyped(each) for key, each in found}
    if kind == "tuple":
        return tuple(untyped(found))
    return (
        int(found)
        if kind == "int"
        else bytes.fromhex(found)
        if kind == "bytes"
        else struct.unpack("<d", bytes.fromhex(found))[0]
    )


def unmapped(value: Any) -> Any:
    """What the runner makes of JSON, whose objects are lists of pairs."""
    if isinstance(value, dict):
        return {name: unmapped(inner) for name, inner in value["map"]}
    return [unmapped(inner) for inner in value] if isinstance(value, list) else value


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
            if "value" in chunk and notation(untyped(stream["value"])) != chunk["value"]:
                return False
            if "elements" in chunk:
                if digest_of(elements_of(base64.b64decode(stream["base64"]))) != chunk["elements"]:
                    return False
            elif (stream["size"], stream["sha256"]) != (chunk["size"], chunk["sha256"]):
                return False
    return True


@pytest.mark.parametrize("key", [None, bytes(range(32))], ids=["plain", "encrypted"])
def test_what_a_writer_makes_of_an_unchanged_tensor_is_read(tmp_path: Path, key: bytes | None) -> None:
    memory, tensors = SaveMemory(), {"cold": torch.randn(5000), "warm": torch.zeros(700)}
    for step in (0, 1):
        base, how = (tmp_path / "0" if step else None), ({"recipients": key} if key else {"chain": "zstd"})
        tensors["warm"] += 1
        with CheckpointWriter(tmp_path / f"{step}", memory=memory, base=base, **how) as writer:
            for name, tensor in tensors.items():
                writer[name] = tensor
    assert writer.report is not None
    assert writer.report.unchanged == 1
    files = {file.name: {"base64": base64.b64encode(file.read_bytes()).decode()} for file in (tmp_path / "1").iterdir()}
    keys = {"keys": [{"kind": "aeskw", "secret": key.hex()}]} if key else {}
    (result,) = in_node(tmp_path, {"checkpoint": [{"name": "increment", "files": files, **keys}]})
    wanted = {name: digest_of(tensor.numpy().tobytes()) for name, tensor in tensors.items()}
    assert result["outcome"] == "read", result
    assert same_items(wanted, result["found"])


# -- what is damaged ---------------------------------------------------------------------------------------------------


def damaged(count: int) -> Iterator[tuple[str, Entry, bytes]]:
    """Files with flipped bits; of containers also with all CRCs right again, of checkpoints the metadata with
    all digests right: their subject, their vector, and what stands in place of its file.
    """
    for subject in ("plain", "container", "note", "value"):
        for name, entry in vectors(subject).items():
            for data in flips(bytes_of(entry["file"]), name, count):
                yield subject, entry, data
                if subject == "container" and (made := mended(data)) is not None:
                    yield subject, entry, made
    for name, entry in vectors("checkpoint").items():
        if "breaks" in entry or not_here(entry) or ".metadata" not in entry["files"] or entry.get("keys"):
            continue
        parts = split_metadata(bytes_of(entry["files"][".metadata"]))
        for data in flips(zstandard.ZstdDecompressor().decompress(parts.root), name, count):
            yield "checkpoint", entry, parts.change(index=frame_of(data)).pack()
        for number, raw in enumerate(parts.raw_parts()):
            for data in flips(raw, name, count):
                yield "checkpoint", entry, parts.with_part(number, data).pack()


def by_reference(subject: str, entry: Entry, folder: Path) -> Any:
    """What the reference decoder reads; None if it refuses."""
    stored = unpack(entry, folder) if subject == "checkpoint" else bytes_of(entry["file"])
    found = verdict(lambda: READERS[subject][1](entry, stored), Refused, OSError)
    if subject == "checkpoint" and found is not None:
        streams = {name: each if isinstance(each, list) else [each] for name, each in found.items()}
        return [
            [name, [digest_of(each[0] if isinstance(each, tuple) else each) for each in of]]
            for name, of in streams.items()
        ]
    return digest_of(found) if isinstance(found, bytes) else found


@pytest.mark.parametrize("count", [2, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_it_agrees_with_the_reference_decoder(count: int, tmp_path: Path) -> None:
    found: dict[str, list[Entry]] = {}
    expected: list[Any] = []
    for number, (subject, entry, data) in enumerate(damaged(count)):
        file = {"base64": base64.b64encode(data).decode()}
        made = entry | ({"files": entry["files"] | {".metadata": file}} if subject == "checkpoint" else {"file": file})
        if not not_here(made):
            found.setdefault(subject, []).append(made)
            expected.append(by_reference(subject, made, tmp_path / str(number)))
    results = in_node(tmp_path, found)
    assert len(results) == len(expected) > 1000
    for result, wanted in zip(results, expected, strict=True):
        assert result["outcome"] in ("read", "refused"), result
        content = result.get("found")
        if result["outcome"] == "read" and result["subject"] == "checkpoint":
            content = [[name, [{key: each[key] for key in ("size", "sha256")} for each in of]] for name, of in content]
        elif result["outcome"] == "read" and result["subject"] in ("note", "value"):
            content = unmapped(content) if result["subject"] == "note" else notation(untyped(content))
        assert content == wanted, result
