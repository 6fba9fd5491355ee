#!/usr/bin/env bash
# CPython 3.12.0 to 3.12.2: once the main thread has ended, a thread of a pool can no longer send a file descriptor to
# another process. The script loses it and exits with 0.
#
# `multiprocessing` starts a thread (resource_sharer) with the first descriptor that it sends, and these versions start no
# thread at that time, though they wait for the pool's (gh-113964; 3.12.3 mends it). The RuntimeError "can't create new
# thread at interpreter shutdown" is in the pool's future, which nobody asks.
#
# torch.distributed.checkpoint.async_save(..., AsyncCheckpointerType.PROCESS) sends the state in this way: as a script's
# last line it saves nothing, without a message, and the script exits with 0 (torch 2.15.0 on CPython 3.12.1).
#
# Needs one of these versions: PYTHON=python3.12 findings/cpython_3_12_descriptors_at_exit.sh. Seen with 3.12.1 on Linux:
#   thread in advance: exit status 0, a descriptor received
#   no thread in advance: exit status 0, nothing received
set -euo pipefail
python=${PYTHON:-python3.12}
"$python" -c 'import sys; sys.exit(not (3, 12) <= sys.version_info < (3, 12, 3))' || {
    echo "not run: $python is not CPython 3.12.0 to 3.12.2"
    exit 2
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/script.py" <<'PYTHON'
import os, sys, time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe, Process
from multiprocessing.reduction import DupFd
from multiprocessing.resource_sharer import DupFd as Shared

class Descriptor:
    def __reduce__(self):
        return Received, (DupFd(0),)

def Received(handle):
    os.close(handle.detach())
    return "a descriptor"

def receive(pipe, file):
    got = pipe.recv()
    with open(file, "w") as out:
        out.write(got)

def send(pipe, child):
    time.sleep(0.5)  # the main thread has ended
    pipe.send(Descriptor())
    child.join()

if __name__ == "__main__":
    here, there = Pipe()
    child = Process(target=receive, args=(there, sys.argv[1]), daemon=True)
    child.start()
    there.close()
    if sys.argv[2:]:
        os.close(Shared(0).detach())
    ThreadPoolExecutor(1).submit(send, here, child)
PYTHON
"$python" -V
"$python" "$folder/script.py" "$folder/early" in-advance </dev/null && echo "thread in advance: exit status 0, $(cat "$folder/early") received"
"$python" "$folder/script.py" "$folder/late" </dev/null && echo "no thread in advance: exit status 0, $(cat "$folder/late" 2>/dev/null || echo nothing) received"
[ -e "$folder/early" ] && [ ! -e "$folder/late" ]
