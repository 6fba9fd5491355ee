"""A process under the library that runs jobs, one after the other: `Runner` starts it, and asks it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.faults.shim import build

ROOT = Path(__file__).parents[2]


class Runner:
    """Use it in a ``with`` block. It has a mount namespace of its own where the system lets it have one."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = ["env", f"LD_PRELOAD={build()}", sys.executable, "-m", "tests.faults.runner"]
        if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0:
            command = ["unshare", "-m", *command]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def run(self, **job: Any) -> dict[str, Any]:
        """What a `jobs.Job` of these arguments comes to: a `Tally` as a dict, or "skipped" with a reason."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the runner died of {self._process.wait()} at {job}; its last words are above")
        found: dict[str, Any] = json.loads(answer)
        if "failed" in found:
            raise RuntimeError(f"{job}: {found['failed']}")
        return found

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def main() -> None:
    """Run the jobs that come in, a line each."""
    import gc
    import traceback
    import warnings

    import torch

    from tests.faults.full_disk import NotPermitted
    from tests.faults.jobs import Job, import_what_is_used
    from tests.faults.shim import Shim

    # What answers is the first stdout; whatever else is printed goes elsewhere.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)  # no threads here: they would not be in the children
    import_what_is_used()
    warnings.simplefilter("ignore")
    shim = Shim()
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        try:
            found = dataclasses.asdict(Job(**json.loads(line)).run(shim))
        except NotPermitted as reason:
            found = {"skipped": str(reason)}
        except Exception:
            found = {"failed": traceback.format_exc()}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
