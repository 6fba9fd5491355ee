"""``make torture``: every fault at every point, and the tables of docs/guarantees.md."""

import argparse
import sys
import time
from pathlib import Path

from benchmarks.machine import machine
from tests.faults.torture import SECTIONS, Result, jobs, publish, try_all

DOCS = Path(__file__).parents[2] / "docs" / "reliability"


def main() -> int:
    parser = argparse.ArgumentParser(prog="torture", description="Saves and loads under every fault.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(SECTIONS)}; all")
    parser.add_argument("--share", type=int, default=1, metavar="N", help="try one point in N, and keep no tables")
    parser.add_argument("--workers", type=int, default=2, help="processes that try (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=DOCS, help="where tables are put (default: %(default)s)")
    given = parser.parse_args()
    if unknown := sorted(set(given.rows) - set(SECTIONS)):
        parser.error(f"no such row: {', '.join(unknown)}")
    wanted = [job for job in jobs(given.share) if job["row"] in (given.rows or SECTIONS)]
    on, begin, done = machine(), time.monotonic(), 0

    def told(result: Result) -> None:
        nonlocal done
        done += 1
        print(f"{done:3} of {len(wanted)}, {time.monotonic() - begin:5.0f} s: {_words(result)}", flush=True)

    results = try_all(wanted, given.workers, told)
    took = round(time.monotonic() - begin)
    wrong = [result for result in results if result.wrong]
    for result in wrong:
        print(f"\nWRONG: {result.job}: {result.wrong}", *result.found["examples"], sep="\n  ")
    points = sum(result.found.get("points", 0) for result in results)
    print(f"\n{points} points in {took} s; {len(wrong)} of {len(wanted)} jobs found something wrong in streamxf")
    if given.share == 1:
        publish(results, on, took, given.results)
    return bool(wrong)


def _words(result: Result) -> str:
    job, found = result.job, result.found
    if "skipped" in found:
        return f"{job['row']}, {job['layout']}, {job['chain']}: skipped, {found['skipped']}"
    counts = ", ".join(f"{name} {number}" for name, number in found.items() if isinstance(number, int) and number)
    return f"{found['row']}, {found['subject']}: {counts}"


if __name__ == "__main__":
    sys.exit(main())
