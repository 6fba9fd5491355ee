"""500 descriptors that no writer makes, in metadata, headers and prefixes: refused, or without any effect."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from streamxf import Checksum, ZStandard
from tests.dcp.helpers import full_chain, rewrite_index
from tests.forge import split_metadata, take_container_apart

from .rows import Row
from .targets import Checkpoint, PlainFile

ROW = "hostile descriptors"
COUNT = 500

HUGE = "9" * 4000
BY_HAND = [
    *("", "/", "#", "?", "\0", "a", "a.b", "\ud800.b/1", "é.b/1"),
    *("os.system/1", "builtins.eval/1?code=1", "streamxf/1", "streamxf.zstd", "streamxf.zstd/"),
    *(f"streamxf.zstd/{rest}" for rest in ("0", "01", "2", "65536", HUGE, "1#", "1?", "1?level=3")),
    *("streamxf.zstd/1?level=3#level=3", "streamxf.zstd/1#level=3&level=3", "streamxf.zstd/1#window=31"),
    *(f"streamxf.zstd/1#level={level}" for level in (HUGE, f"-{HUGE}", "23", "-8", "3.0", "1e3", "\u0663")),
    *("streamxf.zstd/\u0661", "STREAMXF.zstd/1", "streamxf.zstd /1", " streamxf.zstd/1", "streamxf.zstd/1\n"),
    *("streamxf.zstd/1\nstreamxf.checksum/1", "streamxf..zstd/1", "streamxf.zstd/1/1", "../../streamxf.zstd/1"),
    "streamxf.zstd/1?" + "&".join(f"k{number}=v" for number in range(2000)),
    "streamxf.zstd/1#" + "&".join(f"k{number}=v" for number in range(5000)),
    *(f"streamxf.checksum/1{rest}" for rest in ("?algorithm=md5", "?algorithm=sha256", "?algorithm=")),
    *("streamxf.checksum/1#algorithm=crc32c", "streamxf.floatzip/1?width=8", "streamxf.floatzip/1#level=3"),
    *("streamxf.lz4/1#level=13", "streamxf.encrypt/1", "streamxf.encrypt/1#dek=AAAA", "streamxf.encrypt/2#dek=AAAA"),
    *("streamxf.encrypt/1#w=aeskw:0000000000000000:AAAA", "streamxf.encrypt/1#dek=" + "A" * 32_000),
    "streamxf.encrypt/1#dek=" + "A" * 43 + "&w=aeskw:0000000000000000:" + "A" * 54,
    *("streamxf.encrypt/1#dek=" + "A" * 43 + "&w=aeskw:0000000000000000:AAAA" * count for count in (17, 700)),
    *("streamxf.unknown/1", "stream.zstd/1", "stream.zstd/2", "stream.rot13/1", "acme." + "x" * 64 + "/1"),
    *("acme.x/1?k=" + "v" * 5000, "acme.x/1#k=" + "v" * 40_000, "x" * 1_000_000, "a." * 500_000 + "b/1"),
    "streamxf.zstd/1#" + "a=b&" * 250_000,
]
LETTERS = "abz019._-~:=&#?/+ \n\0%\\é"


def hostile(honest: list[str]) -> Iterator[str]:
    """Those above, then altered ones: letters changed, left out and added, pieces doubled, cut off and mixed."""
    yield from BY_HAND
    noise = random.Random(17)
    seen = {*BY_HAND, *honest}
    while True:
        text = noise.choice(honest)
        for _ in range(noise.choice((1, 1, 1, 2, 5))):
            place = noise.randrange(len(text) + 1)
            start, stop = sorted((noise.randrange(len(text) + 1), place))
            text = noise.choice(
                [
                    text[:place] + noise.choice(LETTERS) + text[place + 1 :],
                    text[:place] + noise.choice(LETTERS) + text[place:],
                    text[:place] + text[place + 1 :],
                    text[:place],
                    text[:stop] + text[start:stop] * noise.choice((1, 3, 50)) + text[stop:],
                    text[:place] + noise.choice(honest)[place:],
                ]
            )
        if text not in seen:
            seen.add(text)
            yield text


@pytest.fixture(params=[True, False], ids=["keyed", "unkeyed"])
def keyed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def chain_of(keyed: bool) -> list[Any]:
    return full_chain() if keyed else [ZStandard(), Checksum()]


def replaced(honest: list[str], text: str) -> Iterator[list[str]]:
    """The list with the hostile one in each place, and in addition to all."""
    for number in range(len(honest)):
        yield [*honest[:number], text, *honest[number + 1 :]]
    yield [*honest, text]


def test_where_nothing_vouches_for_the_metadata(row: Row, tmp_path: Path, keyed: bool) -> None:
    target = Checkpoint(tmp_path / "attached", writer="attached", keyed=keyed, chain=chain_of(keyed))
    honest = target.descriptors
    for text in row.share(islice(hostile(honest), COUNT)):
        for texts in replaced(honest, text):
            with target.told(lambda info, texts=texts: replace(info, transform_descriptors=texts)):
                row.refuse_or_equal(texts, target.right, target.load_data)


def test_in_an_index_that_is_vouched_for(row: Row, tmp_path: Path, keyed: bool) -> None:
    target = Checkpoint(tmp_path / "checkpoint", keyed=keyed)
    honest = split_metadata(target.metadata).index["chains"][0]
    for text in row.share(islice(hostile(honest), COUNT)):
        for texts in replaced(honest, text):
            rewrite_index(target.folder, lambda index, texts=texts: index.update(chains=[texts]))
            row.refuse_or_equal(texts, target.right, target.load_metadata)
            rewrite_index(target.folder, lambda index, texts=texts: index.update(chains=[honest], transforms=texts))
            row.refuse_or_equal(texts, target.right, target.load_metadata)
            target.restore()


def test_wrapped_keys_in_metadata(row: Row, tmp_path: Path) -> None:
    target = Checkpoint(tmp_path / "checkpoint")
    parts = split_metadata(target.metadata)
    lines = parts.keys.decode().split("\n")
    for text in row.share(islice(hostile(lines), COUNT)):
        for texts in replaced(lines, text):
            keys = "\n".join(texts).encode("utf-8", "surrogatepass")
            row.refuse(texts, target.with_metadata, parts.change(keys=keys).pack())


@pytest.mark.parametrize("pipe", [False, True], ids=["file", "pipe"])
def test_in_headers_and_prefixes(row: Row, keyed: bool, pipe: bool) -> None:
    file = PlainFile(b"some text", chain_of(keyed), pipe=pipe)
    container = file.container()
    parts = take_container_apart(container.intact)
    honest = parts.chain.decode().split("\n")
    for number, text in enumerate(row.share(islice(hostile(honest), COUNT))):
        places = list(replaced(honest, text))
        for texts in places if row.every else [places[number % len(places)]]:
            chain = "\n".join(texts).encode("utf-8", "surrogatepass")
            if len(chain) < 2**16:
                made = parts.change(chain=chain).container()
                row.refuse_or_equal(texts, b"some text", container.load, made)
    if keyed:
        for text in row.share(islice(hostile([file.wrapped.decode()]), COUNT)):
            row.refuse(text, file.load, file.with_wrapped(text.encode("utf-8", "surrogatepass")[: 2**16 + 1]))
