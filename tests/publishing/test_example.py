"""docs/examples/rl_loop.py: its processes have the same weights at each version, whoever was killed."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # lines come whole
EXAMPLE = str(Path(__file__).parents[2] / "docs/examples/rl_loop.py")


def told(text: str) -> dict[str, str]:
    """By the ids of versions, the digests of the weights, of whole lines."""
    lines = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return {save_id: digest for _, _, save_id, digest, *_ in lines}


def test_trainer_and_followers_agree_on_each_version(tmp_path: Path):
    command = [sys.executable, EXAMPLE, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240, env=ENVIRONMENT)
    digests = told("".join(line for line in done.stdout.splitlines(keepends=True) if line.startswith("trainer")))
    assert len(digests) == 10
    seen = [line.split() for line in done.stdout.splitlines() if line.startswith("inference")]
    assert [step for _, step, *_ in seen].count("10") == 2
    assert all(digests[save_id] == digest for _, _, save_id, digest, _ in seen)


@pytest.mark.slow
def test_processes_that_are_killed_at_random_go_on(tmp_path: Path):
    draw, texts = random.Random(7), {"trainer": "", "inference": ""}
    left, command = {"trainer", "inference"}, [sys.executable, EXAMPLE, str(tmp_path / "run")]
    for attempt in range(40):
        running = {
            role: subprocess.Popen([*command, role], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
            for role in left
        }
        for role, process in running.items():
            try:
                out, _ = process.communicate(timeout=240 if attempt > 1 else draw.uniform(2, 5))
                assert process.returncode == 0
                left = left - {role}
            except subprocess.TimeoutExpired:
                process.kill()
                out, _ = process.communicate()
            texts[role] += out
        if not left:
            break
    digests, seen = told(texts["trainer"]), told(texts["inference"])
    assert not left
    assert seen
    # who is killed between the publication and the line that tells of it has published all the same
    assert len(seen.keys() - digests.keys()) <= 4
    assert all(digests.get(save_id, digest) == digest for save_id, digest in seen.items())
