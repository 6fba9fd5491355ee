"""``streamxf codecs``."""

from pathlib import Path

import pytest

import streamxf
from streamxf.chain import Chain
from streamxf.codecs.floatzip import kernel
from tests.cli.command import Run

GOOD = """
from dataclasses import dataclass
from streamxf import Codec

@dataclass(frozen=True)
class Same(Codec):
    name = "good.same"
    version = 3
    stride: int = 2

    def encode(self, block, info):
        return block

    def decode(self, block, info):
        return block
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that puts a package onto the path, as pip would have installed it."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(package: str, source: str, entry_points: str) -> None:
        (tmp_path / f"{package}_module.py").write_text(source)
        facts = tmp_path / f"{package}-1.2.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        (facts / "entry_points.txt").write_text(entry_points)

    return install


def by_name(entries: list[dict]) -> dict[str, dict]:
    return {entry["name"]: entry for entry in entries}


def test_built_in_ones(run: Run):
    done = run("codecs", "--json")
    found = by_name(done.json["codecs"])
    assert found.keys() >= {"zstd", "lz4", "floatzip", "checksum", "encrypt"}
    assert found["zstd"]["descriptor_name"] == "streamxf.zstd"
    assert found["zstd"]["parameters"] == {"level": 3}
    assert found["zstd"]["from"] == [f"streamxf=={streamxf.__version__}"]
    assert found["floatzip"]["implementation"] == kernel.implementation()
    assert found["zstd"]["implementation"] is None
    assert [entry["name"] for entry in done.json["key_providers"]][:3] == ["file", "env", "aws-kms"]


def test_the_names_are_those_that_chains_take(run: Run):
    key = streamxf.Key.generate()
    done = run("codecs")
    assert "streamxf." not in done.out.replace("streamxf==", "")
    for entry in run("codecs", "--json").json["codecs"]:
        (codec,) = Chain.parse(entry["name"], keys=key)
        assert codec.name == entry["descriptor_name"]
        assert any(line.split()[:1] == [entry["name"]] for line in done.out.splitlines())


def test_one_of_a_third_party(run: Run, install):
    install("good", GOOD, "[streamxf.codecs]\ngood.same = good_module:Same\n")
    entry = by_name(run("codecs", "--json").json["codecs"])["good.same"]
    named = {"name": "good.same", "descriptor_name": "good.same", "from": ["good==1.2"], "version": 3}
    more = {"role": "transform", "implementation": None, "parameters": {"stride": 2}, "problem": None}
    assert entry == named | more
    line = next(line for line in run("codecs").out.splitlines() if "good.same" in line)
    assert line.split() == ["good.same", "3", "transform", "stride=2", "good==1.2"]


@pytest.mark.parametrize(
    "source",
    ["raise RuntimeError('out of order')", "raise SystemExit('out of order')", "import no_such_module_anywhere"],
)
def test_one_that_does_not_load_stops_nothing_and_exits_with_1(run: Run, install, source: str):
    install("good", GOOD, "[streamxf.codecs]\ngood.same = good_module:Same\n")
    install("broken", source, "[streamxf.codecs]\nbroken.codec = broken_module:Codec\n")
    done = run.exits(1, "codecs")
    assert "good.same" in done.out
    (line,) = [line for line in done.out.splitlines() if line.startswith("does not load: ")]
    assert line.startswith("does not load: broken.codec: ")
    assert "out of order" in line or "no_such_module_anywhere" in line
    assert done.err == ""


def test_a_key_provider_that_does_not_load(run: Run, install):
    install("vault", "raise RuntimeError('out of order')", "[streamxf.key_providers]\nvault = vault_module:make\n")
    entry = by_name(run.exits(1, "codecs", "--json").json["key_providers"])["vault"]
    assert entry["from"] == ["vault==1.2"]
    assert "out of order" in entry["problem"]


def test_two_packages_that_claim_a_name(run: Run, install):
    install("good", GOOD, "[streamxf.codecs]\ngood.same = good_module:Same\n")
    install("thief", GOOD, "[streamxf.codecs]\ngood.same = thief_module:Same\n")
    done = run("codecs", "--json")
    entry = by_name(done.json["codecs"])["good.same"]
    assert done.code == 1
    assert sorted(entry["from"]) == ["good==1.2", "thief==1.2"]
    assert "claimed by several packages" in entry["problem"]
