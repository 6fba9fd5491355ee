"""Google Cloud Storage, by gcsfs and an emulator. What runs these tests:

pip install gcsfs gcp-storage-emulator
python -m pytest tests/objectstore/test_google.py
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.dcp.fsspec_checks import assert_only_the_save_remains, load_from, save_to
from tests.dcp.helpers import assert_same
from tests.storage.servers import google

from .emulators import Meeting, check_failing_save, large_state

gcsfs = pytest.importorskip("gcsfs")
pytest.importorskip("gcp_storage_emulator")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """fsspec's options for an emulator that has the bucket "checkpoints"."""
    with google(tmp_path_factory.mktemp("google")) as (_, found):
        yield found


def test_ranges_are_fetched_several_at_a_time(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    url, state = "gs://checkpoints/ranges", large_state(1)
    save_to(url, state, options)
    ranges = Meeting(monkeypatch, gcsfs.GCSFileSystem, "_cat_file", ".distcp")
    assert_same(load_from(url, large_state(0), options), state)
    assert ranges.most >= 2
    assert ranges.calls >= 4
    assert_only_the_save_remains(url, options)


def test_a_failing_save_leaves_the_old_checkpoint(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    discarded: list[Any] = []
    # the emulator knows no request that cancels an upload
    monkeypatch.setattr(gcsfs.core.GCSFile, "discard", lambda file: discarded.append(file.path))
    check_failing_save("gs://checkpoints/failing", options, monkeypatch, gcsfs.core.GCSFile, "_upload_chunk")
    assert len(discarded) == 1
