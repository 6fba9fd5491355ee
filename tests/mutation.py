"""``make mutate``: how many small faults in streamxf/ the tests notice.

Faults are drawn by a seed, first their kind and then their place: checks and raises removed, guards removed, bounds off
by one, comparisons and conditions turned around, closes and locks dropped. Each is made in a copy of the tree, never in
the tree itself. There the tests run that execute its line, those of its own package first, until one of them fails or
their time is over. Which tests execute which lines comes from a run of all tests under coverage, kept in a folder for
as long as nothing changes.
"""

import argparse
import ast
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import pytest

KINDS = ("check", "raise", "guard", "bound", "comparison", "condition", "close", "lock")
ENDS = {"close", "finish", "abort", "cancel", "release", "unlink", "sync", "fsync", "flush", "clear", "give", "join"}
OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is not": "is", "is": "is not"}
OTHER |= {"not in": "in", "in": "not in", "and": "or", "or": "and"}
LOCK = re.compile(r"(\b|_)lock(ed)?\b|turns")
SIGN = re.compile(rb"\b(is not|not in|is|in|and|or)\b|[<>]=?|[=!]=")


class Mutant(NamedTuple):
    """A fault: the bytes from `start` to `stop` of a file, which begin in `line`, become `new`."""

    kind: str
    file: str
    line: int
    start: int
    stop: int
    new: bytes


def mutants_of(file: str, source: bytes) -> Iterator[Mutant]:
    """All faults that can be made in a file."""
    begins = [0]
    for line in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))

    def span(node: Any) -> tuple[int, int]:
        return begins[node.lineno - 1] + node.col_offset, begins[node.end_lineno - 1] + node.end_col_offset

    def made(kind: str, node: Any, start: int, stop: int, new: bytes) -> Mutant:
        return Mutant(kind, file, node.lineno, start, stop, new)

    def sign(kind: str, node: Any, left: Any, right: Any) -> Mutant:
        found = SIGN.search(source, span(left)[1], span(right)[0])
        assert found is not None
        return made(kind, node, *found.span(), OTHER[found[0].decode()].encode())

    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.If(body=[ast.Raise() as only], orelse=[]):
                yield made("check", only, *span(only), b"pass")
            case ast.If(body=[ast.Return() | ast.Continue() as only], orelse=[]):
                yield made("guard", only, *span(only), b"pass")
            case ast.ExceptHandler(body=[*_, ast.Raise() as last]):
                yield made("raise", last, *span(last), b"pass")
            case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()], comparators=[right]):
                yield sign("bound", node, left, right)
            case ast.Compare(left=left, ops=[_], comparators=[right]):
                yield sign("comparison", node, left, right)
            case ast.BinOp(op=ast.Add() | ast.Sub(), right=ast.Constant(value=int(number)) as right):
                yield made("bound", right, *span(right), b"%d" % (number + 1))
            case ast.BoolOp(values=[left, right]):
                yield sign("condition", node, left, right)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield made("condition", node, span(node)[0], span(operand)[0], b"")
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))) if name in ENDS:
                yield made("close", node, *span(node), b"pass")
            case ast.With(items=[ast.withitem(context_expr=taken)]) if LOCK.search(ast.unparse(taken)):
                yield made("lock", taken, *span(taken), b'__import__("contextlib").nullcontext()')


def apply(mutant: Mutant, source: bytes) -> bytes:
    """The file with its fault."""
    return source[: mutant.start] + mutant.new + source[mutant.stop :]


def is_python(source: bytes) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def draw(root: Path, package: str, seed: int, count: int) -> list[Mutant]:
    """Up to `count` different faults."""
    found: dict[str, list[Mutant]] = {kind: [] for kind in KINDS}
    for path in sorted((root / package).rglob("*.py")):
        for mutant in mutants_of(str(path.relative_to(root)), path.read_bytes()):
            found[mutant.kind].append(mutant)
    choose = random.Random(seed)
    for kind in KINDS:
        choose.shuffle(found[kind])
    drawn: list[Mutant] = []
    while len(drawn) < count and any(found.values()):
        kind = choose.choice(KINDS)
        mutant = found[kind].pop() if found[kind] else None
        if mutant is not None and is_python(apply(mutant, (root / mutant.file).read_bytes())):
            drawn.append(mutant)
    return drawn


# -- tests in a copy of the tree ---------------------------------------------------------------------------------------


class Recorder:
    """A plugin of pytest: which test runs, for coverage; how long each took; and the first that failed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._found: dict[str, Any] = {"seconds": {}, "failed": None}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        coverage = sys.modules.get("coverage")
        current = coverage.Coverage.current() if coverage is not None else None
        if current is not None:
            current.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds = self._found["seconds"]
        seconds[report.nodeid] = seconds.get(report.nodeid, 0) + report.duration
        if report.failed:
            self._found["failed"] = self._found["failed"] or report.nodeid

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps(self._found))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(Path(os.environ["STREAMXF_MUTATION"])))


def copy_of(root: Path, target: Path) -> Path:
    """The files that git knows, as they are now, and built extensions."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout.decode()
    built = [str(path.relative_to(root)) for path in root.glob("*/**/*.so") if ".venv" not in path.parts]
    for name in [*filter(None, listed.split("\0")), *built]:
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name, follow_symlinks=False)
    return target


def run_pytest(
    tree: Path, results: Path, *arguments: str, seconds: float = 7200, by: Sequence[str] = ()
) -> dict[str, Any]:
    """What `Recorder` found in a copy of the tree, and pytest's exit status; None as that if it took too long."""
    results.unlink(missing_ok=True)
    paths = os.pathsep.join([str(tree), str(Path(__file__).parent)])
    surroundings = {"PYTHONPATH": paths, "STREAMXF_MUTATION": str(results), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", *by, "pytest", "-n0", "-q", "-p", "mutation", *arguments]
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            command, cwd=tree, env=os.environ | surroundings, stdout=printed, start_new_session=True
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what tests have started, too
        process.wait()
        found = json.loads(results.read_text()) if results.exists() else {"seconds": {}, "failed": None}
        printed.seek(0)
        return found | {"status": status, "printed": printed.read().decode(errors="replace")}


class Map:
    """Which tests execute which lines; made in `folder`, unless it is there and of this very tree."""

    def __init__(self, root: Path, package: str, folder: Path, tests: list[str]) -> None:
        from coverage import CoverageData

        digest = hashlib.sha256(repr(tests).encode())
        for path in sorted([*(root / package).rglob("*.py"), *(root / "tests").rglob("*.py")]):
            digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
        known, data, settings = folder / f"{digest.hexdigest()[:16]}.json", folder / "coverage", folder / "settings"
        if not known.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            settings.write_text(f"[run]\nsource = {package}\nrelative_files = true\nconcurrency = thread\n")
            with tempfile.TemporaryDirectory() as scratch:
                by = ["coverage", "run", f"--rcfile={settings}", f"--data-file={data}", "-m"]
                found = run_pytest(copy_of(root, Path(scratch)), folder / "results", *tests, by=by)
            print(found["printed"][-2000:], flush=True)
            known.write_text(json.dumps(found["seconds"]))
        self._seconds: dict[str, float] = json.loads(known.read_text())
        self._data = CoverageData(str(data))
        self._data.read()

    def tests_of(self, mutant: Mutant, seconds: float) -> list[str]:
        """Tests that execute its line, and take that long together: the shortest of each file by turns, and eight of a
        file of its package. Where there are none, those of its package that are long enough to have started processes.
        """
        found = set(self._data.contexts_by_lineno(mutant.file).get(mutant.line, ())) & self._seconds.keys()
        parts = set(Path(mutant.file).with_suffix("").parts[1:])
        near = {test for test in self._seconds if parts & set(re.split(r"[/_.]", test.partition("::")[0]))}
        found = found or {test for test in near if self._seconds[test] > 0.5}
        chosen: list[str] = []
        turns, files = {}, Counter[str]()
        for test in sorted(found, key=lambda test: (self._seconds[test], test)):
            file = test.partition("::")[0]
            turns[test] = files[file] // (8 if test in near else 1)
            files[file] += 1
        for test in sorted(turns, key=lambda test: turns[test]):
            seconds -= self._seconds[test] + 0.01
            if seconds < 0 and chosen:
                break
            chosen.append(test)
        return chosen


def try_all(root: Path, mutants: list[Mutant], tests: Map, seconds: float, jobs: int) -> Iterator[tuple[str, str]]:
    """For each mutant in turn: ``killed``, ``survived`` or ``not run``; and by which test, or after how many."""
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(jobs) as threads:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copies.put(copy_of(root, Path(scratch) / f"{number}" / "tree"))

        def attempt(mutant: Mutant, chosen: list[str]) -> tuple[str, str]:
            if not chosen:
                return "not run", "by any test"
            tree = copies.get()
            whole = (tree / mutant.file).read_bytes()
            try:
                (tree / mutant.file).write_bytes(apply(mutant, whole))
                names = tree.parent / "names"
                names.write_text("\n".join(chosen))
                found = run_pytest(tree, tree.parent / "results", "-x", f"@{names}", seconds=5 * seconds)
            finally:
                (tree / mutant.file).write_bytes(whole)
                copies.put(tree)
            if found["status"] == pytest.ExitCode.OK:
                return "survived", f"{len(chosen)} tests"
            return "killed", found["failed"] or (
                "by time" if found["status"] is None else "by an error outside of tests"
            )

        yield from threads.map(attempt, mutants, [tests.tests_of(mutant, seconds) for mutant in mutants])


def main() -> None:
    parser = argparse.ArgumentParser(prog="mutation", description="Count how many small faults the tests notice.")
    parser.add_argument("tests", nargs="*", default=["tests"], help="of which some must notice (default: all)")
    parser.add_argument("--count", type=int, default=200, help="faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="draws them (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="of tests for each (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time (default: %(default)s)")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="another tree")
    parser.add_argument("--package", default="streamxf", help="in it (default: %(default)s)")
    given = parser.parse_args()
    begin, counts = time.monotonic(), Counter[str]()
    tests = Map(given.root, given.package, given.root / ".mutation", given.tests)
    mutants = draw(given.root, given.package, given.seed, given.count)
    results = try_all(given.root, mutants, tests, given.seconds, given.jobs)
    for mutant, (outcome, why) in zip(mutants, results, strict=True):
        counts[outcome] += 1
        what = (given.root / mutant.file).read_bytes()[mutant.start : mutant.stop].decode()
        print(f"{outcome}: {mutant.file}:{mutant.line} {mutant.kind}: {what!r:.70} -> {mutant.new.decode()!r}; {why}")
        sys.stdout.flush()
    score = 100 * counts["killed"] / max(1, counts.total())
    print(f"seed {given.seed}: {dict(counts)}, {score:.0f}% killed, in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
