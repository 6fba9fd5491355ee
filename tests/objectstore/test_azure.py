"""Azure's Blob Storage, by adlfs and the emulator Azurite, which needs Node. What runs these tests:

npm install --prefix /tmp/azurite azurite && pip install adlfs
PATH=/tmp/azurite/node_modules/.bin:$PATH python -m pytest tests/objectstore/test_azure.py
"""

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamxf.errors import ReplacedMeanwhile
from streamxf.storage import fetch
from streamxf.storage.opening import open_storage
from tests.dcp.fsspec_checks import assert_only_the_save_remains, fsspec_files, load_from, save_to
from tests.dcp.helpers import assert_same, error_of
from tests.storage.servers import azurite

from .emulators import SECONDS, Meeting, check_failing_save, check_two_saves_at_once, large_state, state_of

adlfs = pytest.importorskip("adlfs")
BlobClient = pytest.importorskip("azure.storage.blob.aio").BlobClient

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """fsspec's options for an emulator that has the container "checkpoints"."""
    with azurite(tmp_path_factory.mktemp("azurite")) as (_, found):
        yield found


def test_parts_and_ranges_are_sent_several_at_a_time(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    url, state = "abfs://checkpoints/parts", large_state(1)
    parts = Meeting(monkeypatch, BlobClient, "stage_block")
    save_to(url, state, options)
    assert parts.most >= 2
    assert parts.calls >= 4
    ranges = Meeting(monkeypatch, adlfs.AzureBlobFileSystem, "_cat_file", ".distcp")
    assert_same(load_from(url, large_state(0), options), state)
    assert ranges.most >= 2
    assert ranges.calls >= 4
    assert_only_the_save_remains(url, options)


def test_a_failing_save_leaves_the_old_checkpoint(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    check_failing_save("abfs://checkpoints/failing", options, monkeypatch, BlobClient, "stage_block")


def test_a_put_on_a_condition(options: dict[str, Any]) -> None:
    storage = open_storage("abfs://checkpoints/condition", options)
    absent = storage.stamp("name")
    assert absent is not None
    storage.put("name", b"first", over=absent)
    storage.put("name", b"first", over=absent)  # as after a lost answer: it is what was to be put
    with pytest.raises(ReplacedMeanwhile):
        storage.put("name", b"second", over=absent)
    first = storage.stamp("name")
    storage.put("name", b"second", over=first)
    with pytest.raises(ReplacedMeanwhile):
        storage.put("name", b"third", over=first)
    second = storage.stamp("name")
    storage.remove(["name"])
    with pytest.raises(ReplacedMeanwhile):
        storage.put("name", b"third", over=second)
    assert storage.stamp("name") == absent


@pytest.mark.parametrize("first", [True, False])
def test_of_two_saves_at_once_the_last_one_stays_whole(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    url = f"abfs://checkpoints/two/{first}"
    check_two_saves_at_once(url, options, monkeypatch, first)


def test_a_backslash_is_refused(options: dict[str, Any]) -> None:
    """Azure stores it as a slash; the data was then not found, as if another save had removed it."""
    storage = open_storage("abfs://checkpoints/names", options)
    for act in (lambda: save_to("abfs://checkpoints/a\\b", state_of(1), options), lambda: storage.write("a\\b", b"")):
        assert "Azure takes \\ for /" in str(error_of(act))


def test_a_refusal_is_asked_once(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    account, _, rest = options["connection_string"].partition("AccountKey=")
    other = f"{account}AccountKey={base64.b64encode(os.urandom(64)).decode()};{rest.partition(';')[2]}"
    storage = open_storage("abfs://checkpoints/refused", {"connection_string": other})
    monkeypatch.setattr(fetch, "_PAUSE", SECONDS)
    for act in (lambda: storage.read("a", 0, 9), lambda: storage.write("a", b""), lambda: storage.stamp("a")):
        assert "AuthorizationFailure" in str(error_of(act))
    assert "AuthorizationFailure" in str(storage.remove(["a"])["a"])


CHILD = """
import sys
from tests.dcp.fsspec_checks import load_from, save_to
from tests.objectstore.emulators import large_state

options = {"connection_string": sys.argv[1]}
save_to("abfs://checkpoints/child", large_state(1), options)
load_from("abfs://checkpoints/child", large_state(0), options)
"""


def test_a_process_leaves_no_client_open(options: dict[str, Any]) -> None:
    """aiohttp complains of sessions and connections that nobody closed."""
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    command = [sys.executable, "-W", "default", "-c", CHILD, options["connection_string"]]
    child = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=2 * SECONDS)
    assert child.returncode == 0, child.stderr
    assert "nclosed" not in child.stderr
    assert fsspec_files("abfs://checkpoints/child", options)
