"""Chains that break a rule of order fail when they are made, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import pytest

from streamxf import LZ4, Checksum, Codec, Encrypt, Key, ZStandard
from streamxf.chain import Chain
from streamxf.errors import ChainError
from tests.samples import KEY


@dataclass(frozen=True)
class Plain(Codec):
    """A transform without a role of its own."""

    name: ClassVar[str] = "test.plain"

    def encode(self, block, info):
        return block

    def decode(self, block, info):
        return block


CODECS = [ZStandard(), LZ4(), Checksum(), Plain(), Encrypt(KEY)]


def legal(chain: tuple[Codec, ...]) -> bool:
    """The rules in other words: whatever follows the first encryption is a checksum."""
    names = [codec.name for codec in chain]
    if "streamxf.encrypt" not in names:
        return True
    return all(name == "streamxf.checksum" for name in names[names.index("streamxf.encrypt") + 1 :])


@pytest.mark.parametrize("size", range(5))
def test_all_chains_of_a_size(size):
    for codecs in product(CODECS, repeat=size):
        if legal(codecs):
            assert Chain(codecs).codecs == codecs
        else:
            with pytest.raises(ChainError):
                Chain(codecs)


@pytest.mark.parametrize(
    ("codecs", "reason"),
    [
        ([Encrypt(KEY), ZStandard()], "neither compresses"),
        ([Encrypt(KEY), Checksum(), LZ4()], "neither compresses"),
        ([Encrypt(KEY), Plain()], "put it before Encrypt"),
        ([Encrypt(KEY), Encrypt(Key.generate())], "at most once"),
        ([Encrypt(KEY), Checksum(), Encrypt(KEY)], "at most once"),
        ([Checksum()] * 9, "at most 8"),
        (["zstd"], "'zstd' is not one"),
        ([ZStandard], "is not one"),
        (b"zstd", "is not one"),
    ],
)
def test_reasons(codecs, reason):
    with pytest.raises(ChainError, match=reason):
        Chain(codecs)


def test_eight_codecs_are_allowed():
    assert len(Chain([Checksum()] * 8)) == 8


def test_of_takes_everything_that_is_a_chain():
    chain = Chain([ZStandard(7)])
    assert Chain.of(chain) is chain
    assert Chain.of(ZStandard(7)) == Chain.of([ZStandard(7)]) == Chain.of("zstd:level=7") == chain
    assert Chain.of([]) == Chain.of("") == Chain()
