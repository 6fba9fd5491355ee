"""Reports add up what all threads did, and print and export it."""

import dataclasses
import json
import pickle
import threading

import pytest

from streamxf.report import LoadReport, Meter, SaveReport
from tests.polling import at_once


def metered() -> Meter:
    meter = Meter()

    def work() -> None:
        for _ in range(1000):
            meter.cell.busy["streamxf.zstd"] += 0.5
            meter.cell.busy["acme.delta"] += 0.25
            meter.io(0.125)
            meter.item(2048, 1024)

    at_once(work, 4)
    return meter


def test_all_threads_are_summed() -> None:
    report = SaveReport.of(metered(), 2.0)
    assert report == SaveReport(
        items=4000,
        raw_bytes=4000 * 2048,
        stored_bytes=4000 * 1024,
        wall_seconds=2.0,
        codec_seconds={"streamxf.zstd": 2000.0, "acme.delta": 1000.0},
        io_seconds=500.0,
        peak_blocks=0,
    )
    assert report.ratio == 0.5
    assert report.throughput == 4000 * 1024


def test_the_peak_of_blocks_in_flight() -> None:
    meter = Meter()
    for count in (2, 5, 3):
        thread = threading.Thread(target=meter.blocks, args=(count,))
        thread.start()
        thread.join()
    assert SaveReport.of(meter, 1.0).peak_blocks == 5


def test_a_dictionary_of_numbers_that_is_json() -> None:
    exported = SaveReport.of(metered(), 2.0).to_dict()
    assert json.loads(json.dumps(exported, allow_nan=False)) == exported
    assert all(type(value) in (int, float) for value in exported.values())
    assert exported["busy_seconds/streamxf.zstd"] == 2000.0
    assert exported["throughput_bytes_per_second"] == 4096000.0


@pytest.mark.parametrize("kind", [SaveReport, LoadReport])
def test_nothing_to_report(kind: type[SaveReport | LoadReport]) -> None:
    report = kind.of(Meter(), 0.0)
    json.dumps(report.to_dict(), allow_nan=False)
    assert (report.ratio, report.throughput) == (1.0, 0.0)
    assert "0 bytes" in str(report)
    assert "0 B/s" in str(report)


def test_a_small_table() -> None:
    lines = str(LoadReport(1234, 3 * 2**30, 2**30, 1.5, {"streamxf.zstd": 2.25}, 0.5, 6)).splitlines()
    assert lines == [
        "Load of this process",
        "items                    1,234",
        "raw                    3.0 GiB",
        "stored                 1.0 GiB  0.333 of raw",
        "wall                   1.500 s  2.15 GB/s of raw",
        "busy in streamxf.zstd  2.250 s",
        "busy in I/O            0.500 s",
        "blocks in flight             6  at most",
    ]


def test_reports_do_not_change_and_travel() -> None:
    report = SaveReport.of(metered(), 2.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.items = 1
    assert pickle.loads(pickle.dumps(report)) == report


def test_which_implementation_ran() -> None:
    meter = metered()
    meter.implementations["streamxf.zstd"] = "compiled"
    report = SaveReport.of(meter, 2.0)
    assert report.implementations == {"streamxf.zstd": "compiled"}
    lines = str(report).splitlines()
    assert [line.split()[-1] for line in lines if "busy in" in line] == ["compiled", "s", "s"]
