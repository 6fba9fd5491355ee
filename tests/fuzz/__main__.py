"""``make fuzz``: each target for its share of the time, one after the other, and the corpus made small again."""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.target import NAMES, corpus_of, find, keep

# MiB; a process that fuzzes has torch in it, two decoders, and what eight blocks of 16 MiB take on their way.
RSS_MIB = 3072


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description="Fuzz what reads bytes from outside.")
    parser.add_argument("targets", nargs="*", default=NAMES, metavar="TARGET", help=f"of {', '.join(NAMES)}; all")
    parser.add_argument("--seconds", type=int, default=180, help="for all targets together (default: %(default)s)")
    parser.add_argument("--merge", action="store_true", help="keep what was found new, in the smallest corpus")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="where inputs that fail are put")
    parser.add_argument("--corpus", type=Path, help="begin with these inputs too, in a folder for each target; grows")
    given = parser.parse_args()
    if unknown := sorted(set(given.targets) - set(NAMES)):
        parser.error(f"no such target: {', '.join(unknown)}")
    share = max(1, given.seconds // len(given.targets))
    failed = [name for name in given.targets if not fuzz(name, share, given.findings, given.corpus, given.merge)]
    print(f"{len(given.targets) - len(failed)} passed, {len(failed)} failed" + "".join(f" {name}" for name in failed))
    return bool(failed)


def fuzz(name: str, seconds: int, findings: Path, corpus: Path | None, merge: bool) -> bool:
    """Fuzz one target; return whether nothing was found."""
    with tempfile.TemporaryDirectory() as scratch:
        grown = corpus / name if corpus is not None else Path(scratch) / "grown"
        known = Path(scratch) / "known"
        for folder in (grown, known, findings):
            folder.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate([*find(name).seeds(), *corpus_of(name).values()]):
            (known / f"{number:03}").write_bytes(data)
        ran = _atheris(name, [f"-max_total_time={seconds}", f"-artifact_prefix={findings}/{name}-"], grown, known)
        found = ran.returncode != 0
        print(f"{name}: {_summary(ran.stderr)}" + (f"\n{ran.stdout[-4000:]}{ran.stderr[-4000:]}" if found else ""))
        sys.stdout.flush()
        if merge and not found:
            _keep_smallest(name, Path(scratch) / "smallest", grown, known)
        return not found


def _keep_smallest(name: str, smallest: Path, *more: Path) -> None:
    """Replace a target's corpus by the smallest that reaches all that it and `more` reach together."""
    smallest.mkdir()
    _atheris(name, ["-set_cover_merge=1"], smallest, *more).check_returncode()
    if not any(smallest.iterdir()):
        raise RuntimeError(f"{name}: libFuzzer kept nothing of the corpus")
    keep(name, [file.read_bytes() for file in smallest.iterdir()])


def _atheris(name: str, arguments: list[str], *corpora: Path) -> subprocess.CompletedProcess[str]:
    """Run a target's process. The first corpus is the one that grows."""
    limits = [
        "-timeout=60",
        f"-rss_limit_mb={RSS_MIB}",
        f"-malloc_limit_mb={RSS_MIB}",
        f"-max_len={find(name).max_len}",
        "-print_final_stats=1",
    ]
    command = [sys.executable, "-m", "tests.fuzz.process", name, *limits, *arguments, *map(str, corpora)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _summary(log: str) -> str:
    """The figures of libFuzzer's log, in a line."""
    figures = dict(re.findall(r"^stat::(\w+):\s+(\d+)", log, re.MULTILINE))
    if not figures:
        return "no figures"
    return (
        f"{int(figures['number_of_executed_units']):,} executions, {figures['average_exec_per_sec']} a second, "
        f"peak {figures['peak_rss_mb']} MiB, slowest {figures['slowest_unit_time_sec']} s"
    )


if __name__ == "__main__":
    sys.exit(main())
