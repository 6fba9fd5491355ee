"""One target under atheris, by itself: ``python -m tests.fuzz.process TARGET [libFuzzer's arguments]``."""

import random
import resource
import shlex
import sys
from pathlib import Path

import atheris

# Bytes of address space that inputs may take on top: what is declared and never touched counts here, too.
ROOM = 2 << 30


def main(name: str, arguments: list[str]) -> None:
    with atheris.instrument_imports(include=["streamxf"]):
        import streamxf.errors  # noqa: F401
        from tests.fuzz.target import find

        target = find(name)
        for seed in target.seeds():  # imports what is imported on first use, and fills caches
            target.run(seed)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
    limit = target.max_len

    def havoc(data: bytes) -> bytes:
        changed = atheris.Mutate(bytes(data), limit)
        assert isinstance(changed, bytes)
        return changed

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        return target.mutate(bytes(data), random.Random(seed), havoc)[:max_size]

    # libFuzzer merges corpora in processes of its own, which it starts by handing the first argument to a shell
    command = f"{shlex.quote(sys.executable)} -m tests.fuzz.process {name}"
    atheris.Setup([command, *arguments], target.run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
