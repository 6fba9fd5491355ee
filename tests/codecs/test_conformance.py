"""The built-in codecs pass the suite, and codecs with a fault fail it by the property that the fault breaks."""

import builtins
import importlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import streamxf
from streamxf.testing import PROPERTIES, CodecConformance, ConformanceError, check_codec, check_property
from streamxf.testing.case import Case
from tests.codecs import broken_codecs as broken

KEY = streamxf.Key(bytes(range(32)))


class TestZStandard(CodecConformance):
    examples = 20

    def codecs(self) -> Sequence[streamxf.Codec]:
        return [streamxf.ZStandard(level) for level in (-7, 3, 22)]


class TestLZ4(CodecConformance):
    examples = 20

    def codecs(self) -> Sequence[streamxf.Codec]:
        return [streamxf.LZ4(level) for level in (-64, 0, 12)]


class TestChecksum(CodecConformance):
    examples = 20

    def codecs(self) -> Sequence[streamxf.Codec]:
        return [streamxf.Checksum(algorithm) for algorithm in ("crc32c", "sha256")]


class TestEncrypt(CodecConformance):
    examples = 20
    codec = streamxf.Encrypt(KEY)
    keys = KEY


class TestSound(CodecConformance):
    """The toy from which the faulty ones differ by one thing."""

    examples = 20

    def codecs(self) -> Sequence[streamxf.Codec]:
        return [broken.Sound(), broken.Sound(mask=1)]


FAULTS: list[tuple[type[broken.Sound], str]] = [
    *[(broken.BadName, "name_and_version"), (broken.BorrowedName, "name_and_version")],
    *[(broken.BadVersion, "name_and_version"), (broken.NotFrozen, "frozen"), (broken.Unpicklable, "pickling")],
    *[(broken.PickleForgets, "pickling"), (broken.DescriptorForgets, "descriptor")],
    *[(broken.NeedsItsFragment, "descriptor"), (broken.LosesLastByte, "round_trip"), (broken.NeedsDtype, "round_trip")],
    *[(broken.FailsOnFullBlocks, "block_edges"), (broken.FailsOnLongerBlocks, "block_edges")],
    *[(broken.FailsOnMebibytes, "large_block"), (broken.ForgetsMiddleBlocks, "container")],
    *[(broken.Expands, "encoded_size"), (broken.IgnoresLimit, "decoded_size"), (broken.WantsRoom, "decoded_size")],
    *[(broken.Explodes, "hostile_bytes"), (broken.NeverEnds, "hostile_bytes"), (broken.BelievesSizes, "hostile_sizes")],
    *[(broken.PadsTheMissing, "truncation"), (broken.IgnoresTrailingBytes, "trailing_bytes")],
    *[(broken.ModifiesInput, "input_unchanged"), (broken.ModifiesStored, "input_unchanged")],
    *[(broken.LeaksScratch, "scratch_contents"), (broken.AddsToScratch, "scratch_contents")],
    *[(broken.ReusesItsMemory, "stateless"), (broken.LeansOnPreviousBlock, "stateless")],
    (broken.SharedByThreads, "threads"),
]


@pytest.fixture(autouse=True)
def _release_decoders() -> Iterator[None]:
    broken.released.clear()
    yield
    broken.released.set()


@pytest.mark.parametrize(("cls", "name"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_fault_fails_the_property_that_it_breaks(cls: type[broken.Sound], name: str) -> None:
    patience = 0.2 if cls is broken.NeverEnds else 60.0
    with pytest.raises(ConformanceError, match=rf"{cls.__name__}\(mask=1\) fails {name}: ") as failure:
        check_property(name, Case(cls(mask=1), examples=40, patience=patience))
    assert PROPERTIES[name] in str(failure.value)


def test_every_property_can_fail() -> None:
    assert {name for _, name in FAULTS} == set(PROPERTIES)


def test_the_class_has_a_test_for_every_property() -> None:
    tests = {name.removeprefix("test_") for name in vars(CodecConformance) if name.startswith("test_")}
    assert tests == set(PROPERTIES)


def test_the_function_names_every_property_that_fails_and_no_other() -> None:
    with pytest.raises(ConformanceError) as failure:
        check_codec(broken.IgnoresTrailingBytes(), examples=10)
    assert " fails trailing_bytes: " in str(failure.value)
    assert " fails round_trip: " not in str(failure.value)
    with pytest.raises(ConformanceError) as failure:
        check_codec(broken.LosesLastByte(), examples=10, properties=["frozen", "round_trip", "container"])
    assert [line.split(" fails ")[1].split(":")[0] for line in str(failure.value).splitlines()] == [
        "round_trip",
        "container",
    ]


def test_the_function_is_quiet_about_a_sound_codec_whose_output_has_the_length_of_its_input() -> None:
    check_codec(broken.SameLength(), examples=10)


def test_a_property_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="no property 'speed'"):
        check_codec(broken.Sound(), properties=["speed"])


def test_something_else_than_a_codec_is_refused() -> None:
    with pytest.raises(TypeError, match=r"tests a streamxf\.Codec"):
        check_codec("zstd")  # type: ignore[arg-type]


def test_a_class_without_a_codec_says_what_to_set() -> None:
    with pytest.raises(TypeError, match="must set codec"):
        CodecConformance().codecs()


def test_without_hypothesis_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def fail(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "hypothesis":
            raise ImportError("No module named 'hypothesis'")
        return real_import(name, *arguments, **options)

    for name in [name for name in sys.modules if name.startswith("streamxf.testing")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(ImportError, match=r"pip install 'streamxf\[testing\]'"):
        importlib.import_module("streamxf.testing")
