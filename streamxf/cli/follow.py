"""``streamxf follow``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamxf.cli import options, show
from streamxf.cli.exits import FINE, line_of
from streamxf.errors import AbortedError, NoCheckpointError, ParameterError, StreamxfError, escaped
from streamxf.places import open_storage, read_small
from streamxf.wording import many, printable, some

if TYPE_CHECKING:
    from streamxf.publishing.engines import InferenceEngine
    from streamxf.publishing.follower import Follower
    from streamxf.publishing.version import Version

_TOLD = ".streamxf-told"  # the last version of which all engines and commands have been told
_LEAST = 0.1  # seconds between two questions
_FIRST, _MOST = 1.0, 60.0  # seconds between two attempts


def follow(
    run: str = options.argument("RUN", "The folder of a streamxf.Publisher, or its URL."),
    into: str = options.value("DIR", "The folder to keep.", ...),
    double: bool = options.flag("Keep two folders in DIR, one and two, and a link, newest; the default."),
    in_place: bool = options.flag("Change the files in DIR itself: less space, and not whole at each moment."),
    exec: str | None = options.value(
        "CMD", "Run by the shell after each version, with STREAMXF_STEP, STREAMXF_SAVE_ID and STREAMXF_FOLDER."
    ),
    engine: list[str] | None = options.value(
        "KIND=URL",
        "An engine that is to reload after each version: sglang=http://HOST:PORT, or vllm=http://HOST:PORT in "
        "development mode (VLLM_SERVER_DEV_MODE=1); repeatable.",
    ),
    once: bool = options.flag("End once the newest version is there."),
    every: float = options.value("TIME", "How often to ask for a newer version.", "10s", parser=options.seconds),
    verify: bool = options.flag("Compare all weights once more with each version that is there."),
    run_id: str | None = options.value("ID", "The only run whose versions are acceptable."),
    allow_older: bool = options.flag("Take a version that was published earlier than the one that is there."),
    *,
    keys: options.Group,
    out: show.Output,
) -> int:
    """Keep a folder of safetensors as the newest published weights, and have inference engines reload it.

    DIR/newest is a link to a whole version at any moment, and what else is in DIR, such as config.json, is linked
    beside the weights. What fails is told and tried again; with --once it ends the command.

    Examples:
    streamxf follow s3://bucket/policy --into /dev/shm/policy --engine sglang=http://127.0.0.1:30000
    streamxf follow /shared/policy --into policy --once --verify --trust file:trainer.pub
    """
    from streamxf.publishing.engines import InferenceEngine
    from streamxf.publishing.follower import Follower

    if double and in_place:
        raise ParameterError("--double and --in-place exclude each other")
    if every < _LEAST:
        raise ParameterError(f"--every {every:g}: it is at least {_LEAST:g} seconds")
    terms: dict[str, Any] = {"run_id": run_id, "allow_older": allow_older, **keys}
    with Follower(run, into, in_place=in_place, **terms) as follower:
        hooks = [*map(InferenceEngine, engine or ())], exec
        verified = "" if verify else None
        last, pause, waits = "", _FIRST, False
        while True:
            try:
                if (update := follower.prepare()) is not None:
                    update.apply()
                if (held := follower.held) is not None:
                    if update is not None or (once and out.json):
                        _show(run, held, str(follower.folder), out)
                    if verified not in (None, held.save_id):
                        _verify(follower)
                        if not out.json:
                            show.say(f"all weights in {follower.folder} are as {held} has them")
                        verified = held.save_id
                    _tell(Path(into), *hooks, held, str(follower.folder))
                elif once:
                    raise NoCheckpointError(follower.why_none(), file=run)
                elif not waits:
                    waits = True
                    text = f"streamxf follow: waiting for {printable(run)}: {follower.why_none()}"
                    print(text, file=sys.stderr, flush=True)
                last, pause = "", _FIRST
            except (StreamxfError, OSError) as error:
                if once:
                    raise
                if (text := line_of(error)) != last:
                    print(f"streamxf follow: {text}; trying again", file=sys.stderr, flush=True)
                last, pause = text, min(2 * pause, _MOST)
            if once:
                return FINE
            time.sleep(min(pause, every) if last else every)


def _show(run: str, version: Version, folder: str, out: show.Output) -> None:
    if out.json:
        facts = {"number": version.number, "step": version.step, "save_id": version.save_id}
        show.as_json({"path": run, "folder": folder, **facts})
    else:
        show.say(f"{version} is in {folder}")
    sys.stdout.flush()


def _verify(follower: Follower) -> None:
    if wrong := follower.verify():
        text = f"{many(len(wrong), 'tensor')} in {follower.folder} are not as {follower.held} has them: {some(wrong)}"
        raise AbortedError(f"{text}. Remove that folder, and follow again")


def _tell(into: Path, engines: list[InferenceEngine], command: str | None, version: Version, folder: str) -> None:
    """Tell all of a version, unless they were. Raises ForeignError for an engine, AbortedError for a command that
    failed; the next call tells all again.
    """
    told = read_small(open_storage(into), _TOLD) == version.save_id.encode()
    if told or (not engines and command is None):
        return
    for engine in engines:
        engine.reload(folder, version)
    if command is not None:
        facts = {"STEP": str(version.step), "SAVE_ID": version.save_id, "FOLDER": folder}
        variables = {f"STREAMXF_{name}": value for name, value in facts.items()}
        done = subprocess.run(command, shell=True, env={**os.environ, **variables}, check=False)
        if done.returncode:
            raise AbortedError(printable(escaped(f"{command} ended with {done.returncode}"), 500))
    (into / _TOLD).write_text(version.save_id)
