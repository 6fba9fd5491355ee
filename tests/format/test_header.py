"""Headers and identities: what is packed is parsed, byte for byte, and every field has its limits."""

import dataclasses
import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf.errors import ContainerError
from streamxf.format.header import Header, Identity, Kind, header_size
from streamxf.format.items import ITEMSIZES, WITHOUT_ELEMENTS, coded_dtype, elements_size, known_dtype
from streamxf.format.limits import MAX_HEADER, MAX_NUMBER
from tests.altered import flipped
from tests.forge import BOUND, KEYED, PUBLISHED, Parts, identity_of

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
writers = st.binary(min_size=16, max_size=16)
serials = st.integers(0, MAX_NUMBER)
objects = st.builds(lambda by, name, serial: Identity(by, Kind.OBJECT, name, number=serial), writers, names, serials)
descriptors = st.sampled_from(["streamxf.zstd/1", "streamxf.checksum/1?algorithm=sha256", "acme.x/7"])
transforms = st.sampled_from(["!stream.zstd/1", "!acme.scramble/2?seed=7"])
ENCRYPT = "streamxf.encrypt/1"


@st.composite
def shards(draw: st.DrawFn, kind: Kind) -> Identity:
    """The identity of any shard of any tensor."""
    axes = draw(st.lists(st.tuples(*[st.integers(0, draw(st.sampled_from([9, 2**14, 2**40])))] * 3), max_size=64))
    left, numbers = MAX_NUMBER, []
    for offset, size, more in axes:
        whole = min(offset + size + more, left)
        begin = min(offset, whole)
        numbers.append((begin, min(size, whole - begin), whole))
        left //= whole or 1
    stored = st.from_regex(r"[a-z][a-z0-9_]{0,31}:(8|16|32|64|128)", fullmatch=True)
    dtype = draw(st.sampled_from(sorted(ITEMSIZES)) | stored.map(known_dtype).filter(bool))
    offset, shard, tensor = zip(*numbers, strict=True) if numbers else ((), (), ())
    return Identity(draw(writers), kind, draw(names), dtype, offset, shard, tensor, draw(serials))


tensors, framed = shards(Kind.TENSOR), shards(Kind.FRAMED)


@st.composite
def headers(draw: st.DrawFn) -> Header:
    identity = draw(st.one_of(st.none(), objects, framed, tensors))
    tensor = identity is not None and identity.kind is Kind.TENSOR
    chain = [] if tensor else draw(st.lists(transforms, max_size=2))
    chain += draw(st.lists(descriptors, max_size=5))
    keyed = draw(st.booleans())
    published = tensor or (identity is not None and draw(st.booleans()))
    seal = draw(st.binary(min_size=32, max_size=32)) if keyed else None
    chain += [ENCRYPT] if keyed else []
    salt, flags = draw(st.binary(min_size=16, max_size=16)), draw(st.integers(0, 255))
    return Header(draw(st.integers(16, 24)), tuple(chain), salt, identity, published, flags, seal)


@given(header=headers())
def test_round_trip(header: Header) -> None:
    data = header.pack()
    parsed = Header.parse(data)
    assert parsed == header
    assert parsed.pack() == data
    assert header_size(data[:33]) == len(data) == header.size <= MAX_HEADER
    before_seal = data[: len(data) - 4 - (32 if header.keyed else 0)]
    assert parsed.digest == hashlib.sha256(before_seal).digest()
    assert parsed.block_chain == tuple(text for text in header.chain if not text.startswith("!"))
    assert dataclasses.replace(header, seal=None).pack(header.seal) == data


@given(header=headers(), junk=st.binary(max_size=60))
def test_any_other_length_is_refused(header: Header, junk: bytes) -> None:
    data = header.pack()
    for wrong in (data + junk + b"x", data[:-1], data[:33], data[:32], b""):
        with pytest.raises(ContainerError):
            Header.parse(wrong)


@given(identity=st.one_of(objects, framed, tensors))
def test_identity_round_trip(identity: Identity) -> None:
    assert Identity.parse(identity.pack()) == identity


@given(identity=st.one_of(objects, framed, tensors), data=st.data())
def test_a_changed_identity_is_another_one_or_none(identity: Identity, data: st.DataObject) -> None:
    packed = bytearray(identity.pack())
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = Identity.parse(bytes(packed))
    except ContainerError:
        return
    assert found != identity
    assert found.pack() == packed


def header_of(**fields: Any) -> bytes:
    """A header with all CRCs right."""
    made = Parts(**fields)
    size = len(made.body) + len(made.seal) + 4
    return made.container()[:size]


OBJECT = identity_of("item")
TENSOR = ("name", 2, "float32", (2, 0), (4, 3), (6, 3))


def test_the_headers_of_these_tests_are_right() -> None:
    assert Header.parse(header_of()) == Header(16, (), bytes(16))
    assert Header.parse(header_of(informative=255)) == Header(16, (), bytes(16), informative=255)
    Header.parse(header_of(flags=BOUND | PUBLISHED, identity=OBJECT))
    Header.parse(header_of(flags=BOUND | PUBLISHED, identity=identity_of(*TENSOR)))
    Header.parse(header_of(flags=KEYED, chain=ENCRYPT.encode(), seal=bytes(32)))
    Header.parse(header_of(chain=b"!stream.zstd/1\nstreamxf.zstd/1"))


@pytest.mark.parametrize(
    "fields",
    [
        {"flags": PUBLISHED, "identity": OBJECT},
        {"flags": KEYED},
        {"flags": KEYED, "seal": bytes(32)},
        {"chain": ENCRYPT.encode(), "seal": bytes(32)},
        {"flags": BOUND, "identity": identity_of("a", 3, "float32", (0,), (4,), (255,), width=2)},
        {"flags": BOUND, "identity": identity_of("a", 3, "float32", (0,), (4,), (256,), width=4)},
        {"flags": BOUND, "identity": identity_of("a", 3, "float32", ndim=9)},
        {"flags": BOUND, "identity": identity_of("a", 3, "float32", dtype_len=255)},
    ],
    ids=str,
)
def test_fields_that_are_refused(fields: dict[str, Any]) -> None:
    """Most of them are among the vectors."""
    with pytest.raises(ContainerError):
        Header.parse(header_of(**fields))


def test_a_crc_that_is_wrong() -> None:
    data = header_of()
    for at in range(12, len(data)):
        with pytest.raises(ContainerError):
            Header.parse(flipped(data, at))


def test_lengths_are_refused_before_the_bytes_are_there() -> None:
    for fields in ({"chain": bytes(1025)}, {"flags": BOUND, "identity": bytes(4097)}):
        with pytest.raises(ContainerError, match="lengths"):
            header_size(Parts(**fields).body[:33])


def test_a_newer_version_is_named() -> None:
    with pytest.raises(ContainerError, match=r"version 9.*reads version 1"):
        header_size(header_of(version=9))


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("", (), "a name of 0 bytes"),
        ("x" * 4062, (), "a name of 4,062 bytes, and 1 to 4,058 fit"),
        ("x", (0,) * 65, "65 dimensions, and 64 are the most"),
        ("\ud800", (), "not valid Unicode"),
    ],
    ids=["none", "long", "dims", "half"],
)
def test_identities_that_cannot_be_written(name: str, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(ContainerError, match=says):
        Identity(bytes(16), Kind.FRAMED, name, "float32", shape, shape, shape).pack()


@pytest.mark.parametrize(
    "arguments",
    [
        *[(15, (), bytes(16)), (25, (), bytes(16)), (16, (), bytes(15)), (16, ("a.b/1",) * 9, bytes(16))],
        *[(16, ("a.b/1?k=" + "v" * 1017,), bytes(16)), (16, ("a.b/é",), bytes(16))],
        *[(16, ("a.b/1", "!stream.zstd/1"), bytes(16)), (16, (), bytes(16), None, True)],
        (16, (), bytes(16), Identity(bytes(16), Kind.TENSOR, "a", "float32"), False),
        (16, ("!stream.zstd/1",), bytes(16), Identity(bytes(16), Kind.TENSOR, "a", "float32"), True),
    ],
    ids=range(10),
)
def test_headers_that_cannot_be_made(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ContainerError):
        Header(*arguments).pack()


def test_a_seal_belongs_to_keyed_headers_only() -> None:
    with pytest.raises(ContainerError, match="seal"):
        Header(16, (ENCRYPT,), bytes(16)).pack()
    with pytest.raises(ContainerError, match="seal"):
        Header(16, (), bytes(16), seal=bytes(32)).pack()


@given(header=headers(), data=st.data())
def test_the_header_that_an_index_awaits(header: Header, data: st.DataObject) -> None:
    packed, known = header.pack(), header.identity
    if known is None or not header.published:
        return
    assert Header.expected(packed + b"more", header.chain, known) == header
    assert Header.expected(packed, header.chain, known._replace(name=known.name + "a")) is None
    assert Header.expected(packed, header.chain, known._replace(number=known.number ^ 1)) is None
    changed = bytearray(packed)
    changed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert Header.expected(bytes(changed), header.chain, known) is None
    for size in (0, 32, 33, len(packed) - 1):
        assert Header.expected(packed[:size], header.chain, known) is None


def test_dtypes() -> None:
    assert elements_size("bfloat16", (3, 5)) == 30
    assert elements_size("complex128", ()) == 16
    assert elements_size("bool", (0, 7)) == 0
    assert not ITEMSIZES.keys() & WITHOUT_ELEMENTS
    assert all(known_dtype(coded_dtype(name)) == name for name in (*ITEMSIZES, *WITHOUT_ELEMENTS))
    assert known_dtype("float6:8") == coded_dtype("float6:8") == "float6:8"
    assert known_dtype("qint8:16") == "qint8:16"
    assert elements_size("later:64", (3,)) == 24
    for name in ("", "Float32:32", "float 32:32", "é:8", "1bit:8", f"{'f' * 33}:8", None, 7, "float32:32\n"):
        assert known_dtype(name) is None
    for name in ("float32", "float32:16", "bool:1", "a:24", "a:08", "a:", "a:8:8"):
        assert known_dtype(name) is None
