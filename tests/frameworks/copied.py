"""Runs a script as Python does, or ranks of it as torchrun does: copied.py COUNT SCRIPT [ARGUMENTS]. In a copy of a
process that has imported torch; its ranks are copies in turn. Those that are told to end are waited for half a minute,
for what they return.
"""

import os
import runpy
import signal
import sys

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def run(*command: str) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):  # which have the agent's own way with them
        signal.signal(number, signal.SIG_DFL)
    sys.argv = [*command]
    runpy.run_path(command[0], run_name="__main__")


count, *command = sys.argv[1:]
if count == "1":
    run(*command)
else:
    place = {"run_id": str(os.getpid()), "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    elastic_launch(LaunchConfig(1, 1, int(count), **place, max_restarts=0, start_method="fork"), run)(*command)
