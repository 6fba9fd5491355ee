"""Chains as text, both ways, and every way in which it can be wrong; rules of order, whose breaches have a reason when
the chain is made; and descriptors: well-formed text goes round, everything else is a DescriptorError.
"""

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf import LZ4, Checksum, Codec, CodecRegistry, Encrypt, Key, ZStandard
from streamxf.chain import Chain
from streamxf.descriptor import Descriptor, check_name
from streamxf.errors import ChainError, DescriptorError, KeyMissingError, ParameterError, UnknownCodecError
from streamxf.keys import KeyRing
from tests.samples import KEY, chains


def rebuilt(texts, keys):
    return Chain(CodecRegistry().build(Descriptor.parse(text), keys) for text in texts)


@given(codecs=chains())
def test_round_trip(codecs):
    assert Chain.parse(str(Chain(codecs)), keys=KEY) == Chain(codecs)


@given(codecs=chains())
def test_descriptors_round_trip(codecs):
    """As torch's writers record them; and as an index does, which has the wrapped data key in another place."""
    chain = Chain(codecs)
    opener = chain.encryption.data_key if chain.encryption is not None else None
    for again in (
        rebuilt([codec.get_descriptor() for codec in chain], KeyRing.of(KEY)),
        rebuilt([str(item) for item in chain.descriptors], opener),
    ):
        assert again.descriptors == chain.descriptors
        assert [type(codec) for codec in again] == [type(codec) for codec in chain]
        assert (again.encryption is None) or again.encryption.data_key == opener


def test_descriptors_of_an_index_have_no_keys():
    chain = Chain([ZStandard(5), Encrypt(KEY), Checksum("sha256")])
    texts = [str(item) for item in chain.descriptors]
    assert texts == ["streamxf.zstd/1#level=5", "streamxf.encrypt/1", "streamxf.checksum/1?algorithm=sha256"]
    assert chain.bound == ("streamxf.zstd/1", *texts[1:])
    for keys in (None, KeyRing.of(KEY)):
        with pytest.raises((DescriptorError, KeyMissingError)):
            rebuilt(texts, keys)
    with pytest.raises(DescriptorError, match="which belongs elsewhere"):
        rebuilt([codec.get_descriptor() for codec in chain], chain.encryption.data_key)


def test_the_text_form_wraps_no_data_key():
    """A key service would be called for it."""
    codec = Encrypt(KEY)
    assert str(Chain([codec])) == "encrypt"
    assert Chain([codec]).bound == ("streamxf.encrypt/1",)
    assert codec._session is None


@pytest.mark.parametrize(
    ("text", "codecs"),
    [
        ("zstd", [ZStandard()]),
        ("zstd:level=3+checksum+encrypt", [ZStandard(3), Checksum(), Encrypt(KEY)]),
        (" zstd : level = -7 + lz4:level=12 ", [ZStandard(-7), LZ4(12)]),
        ("checksum:algorithm=sha256", [Checksum("sha256")]),
        ("streamxf.zstd:level=1", [ZStandard(1)]),
        ("", []),
        ("  ", []),
    ],
)
def test_meaning(text, codecs):
    assert Chain.parse(text, keys=KEY) == Chain(codecs)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        *[("zstd+", ChainError, "''"), ("+zstd", ChainError, "''"), ("zstd++lz4", ChainError, "''")],
        *[("zstd:", ChainError, "'zstd:'"), (":level=3", ChainError, "':level=3'")],
        *[("zstd:level", ChainError, "key=value"), ("zstd:level=3,", ChainError, "key=value")],
        *[("zstd:=3", ChainError, "key=value"), ("zstd:level=3,level=4", ChainError, "twice")],
        *[("zstd:level=23", ParameterError, "-7 to 22"), ("zstd:level=high", ChainError, "'high'")],
        *[("zstd:speed=1", ChainError, "takes: level"), ("checksum:algorithm=md5", ParameterError, "crc32c, sha256")],
        ("gzip", ChainError, "built in are zstd, lz4, floatzip, checksum, encrypt"),
        *[("acme.delta", UnknownCodecError, "acme.delta"), ("encrypt:key=abc", ChainError, "no parameters")],
        *[("encrypt+zstd", ChainError, "put it before Encrypt"), ("+".join(["checksum"] * 9), ChainError, "at most 8")],
    ],
)
def test_errors(text, error, says):
    with pytest.raises(error, match=says):
        Chain.parse(text, keys=KEY)


@pytest.mark.parametrize(("keys", "count"), [(None, 0), ([KEY, Key.generate()], 2)])
def test_encrypt_needs_exactly_one_key(keys, count):
    with pytest.raises(ChainError, match=f"there are {count}"):
        Chain.parse("encrypt", keys=keys)


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
def test_reasons_of_a_refused_order(codecs, reason):
    with pytest.raises(ChainError, match=reason):
        Chain(codecs)


def test_eight_codecs_are_allowed():
    assert len(Chain([Checksum()] * 8)) == 8


def test_of_takes_everything_that_is_a_chain():
    chain = Chain([ZStandard(7)])
    assert Chain.of(chain) is chain
    assert Chain.of(ZStandard(7)) == Chain.of([ZStandard(7)]) == Chain.of("zstd:level=7") == chain
    assert Chain.of([]) == Chain.of("") == Chain()


parts = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
names = st.lists(parts, min_size=2, max_size=4).map(".".join)
keys = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
values = st.from_regex(r"[A-Za-z0-9._~:-]{0,12}", fullmatch=True)
parameters = st.dictionaries(keys, values, max_size=4).map(lambda found: tuple(sorted(found.items())))


@given(name=names, version=st.integers(1, 65535), bound=parameters, fragment=parameters)
def test_a_descriptor_goes_round(name, version, bound, fragment):
    made = Descriptor(name, version, bound, fragment)
    assert Descriptor.parse(str(made)) == made
    assert Descriptor.parse(made.bound) == Descriptor(name, version, bound)


@given(text=st.one_of(st.text(max_size=60), st.text(alphabet="ab.1/?#&=:+-_~\n\x00", max_size=30)))
def test_any_text_is_a_descriptor_or_a_descriptor_error(text):
    try:
        parsed = Descriptor.parse(text)
    except DescriptorError:
        return
    assert str(parsed) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a.b/1.0",
        "a.b/-1",
        "a.b/\u0661",  # a digit elsewhere
        ".a/1",
        "a.b /1",
        "a.b/1\n",
        "a.b/1#",
        "a.b/1?#k=v",
        "a.b/1?=v",
        "a.b/1?k=v&",
        "a.b/1?w=1&w=2",
        "a.b/1#w=1&w=2",
        "streamxf.encrypt/1#dek=1&dek=2",
        "a.b/1?l=v&k=v",
        "a.b/1?k_=v&k=v",
        "a.b/1?K=v",
        "a.b/1?k=a b",
        "a.b/1?k=a/b",
        "a.b/1?k=v#k=v#k=v",
        "a.b/1?k=" + "v" * (1024 - 7),
        "a.b/1#k=" + "v" * (65536 - 1),
    ],
)
def test_descriptors_that_are_refused(text):
    """More of them are among the vectors."""
    with pytest.raises(DescriptorError):
        Descriptor.parse(text)


def test_only_wrapped_keys_repeat():
    assert Descriptor.parse("streamxf.encrypt/1#w=1&w=2").fragment == (("w", "1"), ("w", "2"))


def test_only_what_is_bound_is_sorted():
    assert Descriptor.parse("a.b/1?k=1&l=0#l=1&k=2") == Descriptor(
        "a.b", 1, (("k", "1"), ("l", "0")), (("l", "1"), ("k", "2"))
    )


def test_descriptors_of_lengths_up_to_the_limits_pass():
    assert len(Descriptor.parse("a.b/1?k=" + "v" * (1024 - 8)).bound) == 1024
    assert Descriptor.parse("a.b/1#k=" + "v" * (32768 - 2)).fragment
    assert check_name("a." + "b" * 62)


def test_messages_about_descriptors_stay_short():
    with pytest.raises(DescriptorError) as caught:
        Descriptor.parse("x" * 4000 + "/1")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("key", "value"), [("K", "v"), ("k", "a b"), ("k", "a&b"), ("k", "é")])
def test_what_cannot_stand_in_a_descriptor_is_not_written(key, value):
    with pytest.raises(DescriptorError):
        str(Descriptor("a.b", 1, ((key, value),)))
