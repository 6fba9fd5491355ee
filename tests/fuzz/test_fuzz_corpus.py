"""Every input that fuzzing found worth keeping, through its target, without atheris."""

import random

import pytest

from streamxf import LZ4, ZStandard
from streamxf.descriptor import Descriptor
from streamxf.torchsave.unpickler import Unpickler
from tests.exhaustive import DAY
from tests.fuzz import oracle
from tests.fuzz.oracle import Finding
from tests.fuzz.target import CORPUS, NAMES, corpus_of, find

MOST_BYTES = 1 << 20


@pytest.mark.parametrize("name", NAMES)
def test_nothing_comes_out_but_data_and_refusals(name):
    run = find(name).run
    corpus = corpus_of(name)
    assert corpus
    for called, data in corpus.items():
        try:
            run(data)
        except Exception as error:
            error.add_note(f"input: {called}")
            raise


@pytest.mark.parametrize("name", NAMES)
def test_seeds_are_accepted_and_can_be_changed(name):
    target = find(name)
    choose = random.Random(7)

    def havoc(data: bytes) -> bytes:
        at = choose.randint(0, len(data))
        return data[:at] + choose.randbytes(choose.randint(0, 3)) + data[at + choose.randint(0, 3) :]

    seeds = list(target.seeds())
    step = max(1, len(seeds) // 30)
    seeds = seeds[DAY % step :: step]
    for seed in seeds:
        target.run(seed)
    for number in range(max(20, len(seeds) // 2)):
        target.run(target.mutate(seeds[number % len(seeds)], choose, havoc))


def test_the_corpus_is_small():
    assert sum(len(data) for name in NAMES for data in corpus_of(name).values()) < MOST_BYTES
    assert {file.name for file in CORPUS.iterdir()} == {f"{name}.tar.xz" for name in NAMES}


# -- and what must not come out is noticed -------------------------------------------------------


def run_seeds(name: str) -> None:
    target = find(name)
    for seed in target.seeds():
        target.run(seed)


def test_other_exceptions_pass(monkeypatch):
    monkeypatch.setattr(Descriptor, "parse", lambda _: {}["missing"])
    with pytest.raises(KeyError):
        run_seeds("descriptor")


def test_a_codec_that_stumbles_is_found_behind_its_error(monkeypatch):
    monkeypatch.setattr(ZStandard, "decode", lambda *_: [][1])
    with pytest.raises(Finding, match="IndexError"):
        run_seeds("codecs")


def test_other_bytes_are_found(monkeypatch):
    right = LZ4.decode
    monkeypatch.setattr(LZ4, "decode", lambda *arguments: right(*arguments)[::-1])
    with pytest.raises(Finding, match="different bytes"):
        run_seeds("codecs")


def test_what_only_streamxf_refuses_is_found(monkeypatch):
    monkeypatch.setattr("streamxf.codecs.zstd.MAX_WINDOW", 1)
    with pytest.raises(Finding, match="only streamxf refuses"):
        run_seeds("codecs")


def test_another_reading_of_a_pickle_is_found(monkeypatch):
    right = Unpickler._fill_list
    monkeypatch.setattr(Unpickler, "_fill_list", lambda self, items: right(self, items[::-1]))
    with pytest.raises(Finding, match="to C's unpickler"):
        run_seeds("unpickler")


def test_memory_is_watched(monkeypatch):
    sizes = iter((0, oracle.MEMORY_CAP + 1))
    monkeypatch.setattr(oracle, "_peak", lambda: next(sizes))
    with pytest.raises(Finding, match="MiB"):
        oracle.attempt(lambda: None)


def test_memory_that_ran_out_is_found_behind_a_refusal():
    def refuse() -> None:
        try:
            raise MemoryError
        except MemoryError as error:
            raise oracle.StreamxfError("damaged") from error

    with pytest.raises(Finding, match="MemoryError"):
        oracle.attempt(refuse)
