"""``executor=`` on clusters of this machine: Dask, Ray and MPI, each of which needs its package, and torchrun."""

import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import streamxf
from streamxf import Key
from streamxf.cli import ranks
from streamxf.errors import ParameterError
from streamxf.keys.file import write_key
from streamxf.tools import fleet
from tests.altered import flip
from tests.cli import preloaded
from tests.code_blocks import blocks_of
from tests.dcp.helpers import KEY, data_files, full_chain, save
from tests.frameworks.killed import environment, two_ranks

STATE = {f"w{number:02}": torch.randn(200, 300) for number in range(12)}


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    save(STATE, tmp_path / "checkpoint", full_chain(), thread_count=3)
    flip(data_files(tmp_path / "checkpoint")[1])
    write_key(tmp_path / "key", KEY)
    return tmp_path / "checkpoint"


def test_dask(damaged: Path) -> None:
    distributed = pytest.importorskip("distributed")
    alone = streamxf.verify(damaged, keys=KEY)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor() as executor,
    ):
        with pytest.raises(ParameterError, match="key in memory"):
            streamxf.verify(damaged, keys=KEY, executor=executor)
        report = streamxf.verify(damaged, keys=f"file:{damaged.parent / 'key'}", executor=executor)
        assert not report.ok
        assert replace(report, seconds=0) == replace(alone, seconds=0)
        save(STATE | {"w03": STATE["w03"] + 1}, damaged.parent / "other", full_chain(), thread_count=3)
        for first, second in ((damaged, damaged.parent / "other"), (damaged.parent / "other", damaged)):
            found = streamxf.diff(first, second, keys=f"file:{damaged.parent / 'key'}", executor=executor)
            assert found == streamxf.diff(first, second, keys=KEY)
            assert "w03" in {change.name for change in found.changed} | found.incomparable.keys()
        key = f"file:{damaged.parent / 'key'}"
        how = {"chain": "zstd+encrypt", "keys": key, "recipients": key, "file_size": 500_000, "executor": executor}
        with pytest.raises(ParameterError, match="key in memory"):
            streamxf.transcode(damaged.parent / "other", damaged.parent / "copy", **how | {"recipients": KEY})
        done = streamxf.transcode(damaged.parent / "other", damaged.parent / "copy", **how)
        assert (done.items, done.files, done.notes) == (12, 6, ())
        assert streamxf.diff(damaged.parent / "other", damaged.parent / "copy", keys=KEY).same
        values = streamxf.inspect(
            damaged.parent / "other", values=True, keys=f"file:{damaged.parent / 'key'}", executor=executor
        )
        assert values == streamxf.inspect(damaged.parent / "other", values=True, keys=KEY)


def test_a_dask_cluster_without_workers_is_waited_for_with_a_word(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(fleet, "_PATIENCE", 0.5)
    with (
        distributed.LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor() as executor,
    ):
        come = threading.Timer(2, cluster.scale, [1])
        come.start()
        with pytest.warns(UserWarning, match="ClientExecutor has returned nothing"):
            report = streamxf.verify(damaged, keys=f"file:{damaged.parent / 'key'}", executor=executor)
        come.join()
    assert replace(report, seconds=0) == replace(streamxf.verify(damaged, keys=KEY), seconds=0)


def test_ray_as_the_page_says(damaged: Path) -> None:
    ray = pytest.importorskip("ray")
    page = (Path(__file__).parents[3] / "docs" / "recovery.md").read_text(encoding="utf-8")
    recipe: dict[str, Any] = {"__name__": "recipe"}
    exec(next(block.code for block in blocks_of(page) if "ray.remote" in block.code), recipe)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        executor = recipe["RayExecutor"]()
        report = streamxf.verify(damaged, keys=f"file:{damaged.parent / 'key'}", executor=executor)
        assert replace(report, seconds=0) == replace(streamxf.verify(damaged, keys=KEY), seconds=0)
        copy = partial(streamxf.transcode, chain="lz4", keys=f"file:{damaged.parent / 'key'}")
        save(STATE, damaged.parent / "other", full_chain())
        (made,) = executor.map(copy, [damaged.parent / "other"], [damaged.parent / "copy"])
        assert made.items == len(STATE)
    finally:
        ray.shutdown()


COMMAND = "import runpy; runpy.run_module('streamxf', run_name='__main__', alter_sys=True)"


def said_by_two(code: str, *arguments: Any) -> list[str]:
    """The lines on stderr of two ranks that run Python code, and print nothing else."""
    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)  # as torchrun's agent has one
    run = partial(preloaded.script, code, *arguments, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port))
    job = {"WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    with ThreadPoolExecutor(2) as pool:
        ended = [*pool.map(lambda rank: run(RANK=str(rank), **job), range(2))]
    assert not any(each.stdout for each in ended)
    return [line for each in ended for line in each.stderr.splitlines()]


COUNTING = """
import sys
from streamxf.cli import ranks
from streamxf.cli.__main__ import main
import torch.distributed as dist

tasks, done = [], ranks._done
ranks._done = lambda call, args: (tasks.append(args), done(call, args))[1]
ranks.together = ranks.silent = True
share = ranks.Ranks.share

def counted(self):
    share(self)
    print(f"rank {dist.get_rank()}: {len(tasks)}\\n", end="", file=sys.stderr)

ranks.Ranks.share, sys.stdout = counted, sys.stderr
main(["verify", *sys.argv[1:]])
"""


@pytest.mark.slow
def test_ranks_under_torchrun(damaged: Path, tmp_path: Path) -> None:
    key = f"file:{tmp_path / 'key'}"
    _, _, torchrun, *command = two_ranks("-m", "streamxf", "verify", damaged, "--key", key)
    done = preloaded.module(str(torchrun), *command, **environment())
    assert done.returncode == 1, done.stderr
    first, _, *rest = done.stdout.splitlines()
    wanted, _, *others = str(streamxf.verify(damaged, keys=KEY)).splitlines()
    assert [first, *rest] == [wanted, *others]
    found = [line for line in said_by_two(COUNTING, damaged, "--key", key) if line.startswith("rank ")]
    assert sorted(found) == ["rank 0: 2", "rank 1: 1"]
    (line,) = said_by_two(COMMAND, "inspect", damaged)
    assert "do nothing else so" in line


ALONE = """
import os, sys
from streamxf.cli import ranks
from streamxf.cli.__main__ import main

assert ranks.join()
if os.environ["RANK"] == "1":
    sys.exit(main(["verify", sys.argv[1]]))
"""


@pytest.mark.slow
def test_what_goes_wrong_is_said_once(damaged: Path, tmp_path: Path) -> None:
    write_key(tmp_path / "other.key", Key.generate())
    for path, *more, says in (
        (damaged, "--key", f"file:{tmp_path / 'other.key'}", "keys given: "),
        (tmp_path / "nowhere", "there is no file or folder"),
    ):
        lines = said_by_two(COMMAND, "verify", path, *more)
        assert sum(says in line for line in lines) == 1, lines  # gloo may say more
    (line,) = said_by_two(ALONE, tmp_path / "nowhere")
    assert "there is no file or folder" in line


def test_without_a_store_every_rank_says_it(tmp_path: Path) -> None:
    for place in ({}, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"}):
        done = preloaded.module("streamxf", "verify", tmp_path / "nowhere", WORLD_SIZE="2", RANK="1", **place)
        assert done.returncode == 2
        assert "there is no file or folder" in done.stderr


APART = """
import os, sys
from streamxf.cli import ranks
from streamxf.cli.__main__ import main

assert ranks.join()
assert main(["verify", sys.argv[1 + int(os.environ["RANK"])]]) == 2
"""


@pytest.mark.slow
@pytest.mark.parametrize("threads", [3, 2])
def test_ranks_that_see_different_saves_fail(damaged: Path, tmp_path: Path, threads: int) -> None:
    save(STATE, tmp_path / "other", full_chain(), thread_count=threads)  # with as many files, or fewer
    (line,) = said_by_two(APART, damaged, tmp_path / "other")
    assert "do not see the same files" in line


def test_what_torchrun_would_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("together", "silent"):
        monkeypatch.setattr(ranks, name, False)
    for size, rank in (("x", "0"), ("", "0"), ("2", "2"), ("2", "-1"), ("1", "x"), ("\u0662", "0"), ("2", None)):
        monkeypatch.setenv("WORLD_SIZE", size)
        monkeypatch.delenv("RANK", raising=False) if rank is None else monkeypatch.setenv("RANK", rank)
        assert not ranks.join(), (size, rank)
    done = preloaded.module("streamxf", "verify", tmp_path)
    assert done.returncode == 2
    assert done.stderr == "streamxf: RANK and WORLD_SIZE are not those of a rank under torchrun\n"


OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
SCRIPT = """
import sys
from mpi4py.futures import MPIPoolExecutor
import streamxf

if __name__ == "__main__":
    with MPIPoolExecutor() as executor:
        assert executor.num_workers == 2
        print(streamxf.verify(sys.argv[1], keys=sys.argv[2], executor=executor))
"""


def test_mpi(damaged: Path, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
    if shutil.which("mpiexec") is None:
        pytest.skip("there is no mpiexec")
    (tmp_path / "script.py").write_text(SCRIPT)
    mpi = ["mpiexec", "-n", "3", sys.executable, "-m", "mpi4py.futures"]
    command = [*mpi, tmp_path / "script.py", damaged, f"file:{tmp_path / 'key'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | OPEN_MPI)
    assert done.returncode == 0, done.stderr
    first, _, *rest = done.stdout.splitlines()  # the second line has the time
    wanted, _, *others = str(streamxf.verify(damaged, keys=KEY)).splitlines()
    assert [first, *rest] == [wanted, *others]
