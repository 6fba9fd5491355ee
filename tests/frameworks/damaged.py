"""Examples of docs/examples/ started again after the newest checkpoint was damaged."""

import random
from collections.abc import Callable
from pathlib import Path

from streamxf.manager.record import numbers_in
from tests import altered

from .killed import finished, losses


def flip(path: Path) -> None:
    """Turn over one bit somewhere."""
    altered.flip(path, random.Random(path.name).randrange(path.stat().st_size), 1 << 4)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def assert_falls_back(
    folder: Path, command: list[str | Path], pattern: str, *, inside: str = "", **variables: str
) -> None:
    """Run a training of 12 steps that saves at every third, and start it again after damage of the last save: a flipped
    bit, a file that is too short, a file that is gone. Each time it must resume from the save before, without help, and
    save the last one again. The largest file that matches `pattern` is damaged, in the folder of the last save; the
    saves are `inside` the run.
    """
    run = folder / "damaged"
    whole = losses(finished([*command, run], **variables))
    damages: list[Callable[[Path], None]] = [flip, truncate, Path.unlink]
    for damage in damages:
        saves = (path for path in (run / inside).glob("*[0-9]") if not path.name.startswith("damaged-"))  # put aside
        last = max(saves, key=lambda path: numbers_in(path.name))
        file = max(last.glob(pattern), key=lambda path: path.stat().st_size)
        damage(file)
        again = losses(finished([*command, run], **variables))
        assert again == {step: whole[step] for step in ("10", "11", "12")}, damage
