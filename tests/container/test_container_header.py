"""Headers and identities: what is packed is parsed, byte for byte, and every field has its limits."""

from __future__ import annotations

import hashlib
import struct

import pytest
from forge import with_crc
from hypothesis import given
from hypothesis import strategies as st

from streamxf.container.header import Header, Identity, Kind, header_size
from streamxf.container.limits import MAX_HEADER
from streamxf.errors import ContainerError

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
offsets = st.lists(st.integers(0, 2**64 - 1), max_size=64).map(tuple)
tensors = st.builds(Identity, st.binary(min_size=16, max_size=16), st.just(Kind.TENSOR), offsets, names)
objects = st.builds(Identity, st.binary(min_size=16, max_size=16), st.just(Kind.BYTES), st.just(()), names)
descriptors = st.sampled_from(["streamxf.zstd/1", "streamxf.checksum/1?algorithm=sha256", "stream.zstd/1", "acme.x/7"])


@st.composite
def headers(draw: st.DrawFn) -> Header:
    chain = tuple(draw(st.lists(descriptors, max_size=7)))
    keyed = draw(st.booleans())
    identity = draw(st.one_of(st.none(), tensors, objects))
    published = identity is not None and draw(st.booleans())
    seal = draw(st.binary(min_size=32, max_size=32)) if keyed else None
    chain += ("streamxf.encrypt/1",) if keyed else ()
    salt = draw(st.binary(min_size=32, max_size=32))
    return Header(draw(st.integers(16, 24)), chain, salt, identity, published, seal)


@given(header=headers())
def test_round_trip(header):
    data = header.pack()
    parsed = Header.parse(data)
    assert parsed == header
    assert parsed.pack() == data
    assert header_size(data[:48]) == len(data) <= MAX_HEADER
    before_seal = data[: len(data) - 4 - (32 if header.keyed else 0)]
    assert parsed.digest == hashlib.sha256(before_seal).digest()


@given(header=headers(), junk=st.binary(max_size=60))
def test_any_other_length_is_refused(header, junk):
    data = header.pack()
    for wrong in (data + junk + b"x", data[:-1], data[:48], data[:47], b""):
        with pytest.raises(ContainerError):
            Header.parse(wrong)


@given(identity=st.one_of(tensors, objects))
def test_identity_round_trip(identity):
    assert Identity.parse(identity.pack()) == identity


def raw_header(
    *, version=1, log2=16, flags=0, reserved=0, chain=b"", identity=b"", seal=b"", chain_len=None, ident_len=None
) -> bytes:
    lengths = len(chain) if chain_len is None else chain_len, len(identity) if ident_len is None else ident_len
    fixed = struct.pack("<8sBBBBHH32s", b"\xd3SXF\r\n\x1a\n", version, log2, flags, reserved, *lengths, bytes(32))
    return with_crc(fixed + chain + identity + seal)


IDENTITY = bytes(16) + b"\x02\x01" + bytes(8) + b"name"


def test_the_raw_headers_of_these_tests_are_right():
    Header.parse(raw_header())
    Header.parse(raw_header(flags=6, identity=IDENTITY))
    Header.parse(raw_header(flags=1, chain=b"streamxf.encrypt/1", seal=bytes(32)))


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 0},
        {"version": 2},
        {"log2": 15},
        {"log2": 25},
        {"log2": 255},
        {"flags": 8},
        {"flags": 128},
        {"reserved": 1},
        {"flags": 2},  # bound to nothing
        {"flags": 4},  # published without being bound
        {"flags": 4, "identity": IDENTITY},
        {"identity": IDENTITY},
        {"flags": 1},  # keyed without encryption
        {"flags": 1, "seal": bytes(32)},
        {"chain": b"streamxf.encrypt/1"},
        {"chain": b"streamxf.encrypt/1", "seal": bytes(32)},
        {"chain": b"a.b/1\n"},
        {"chain": b"\na.b/1"},
        {"chain": b"a.b/1\n\nc.d/1"},
        {"chain": b"a.b/1#level=3"},
        {"chain": b"a.b/\xff"},
        {"chain": b"a.b/1\x00"},
        {"chain": b"\n".join([b"a.b/1"] * 9)},
        {"chain": b"a.b/1?k=" + b"v" * 1017},
        {"chain_len": 1025},
        {"chain_len": 65535},
        {"flags": 2, "ident_len": 4097},
        {"flags": 2, "identity": bytes(16) + b"\x02"},
        {"flags": 2, "identity": bytes(16) + b"\x02\x00"},  # no name
        {"flags": 2, "identity": bytes(16) + b"\x02\x02" + bytes(8) + b"name"},
        {"flags": 2, "identity": bytes(16) + b"\x00\x00name"},
        {"flags": 2, "identity": bytes(16) + b"\x03\x00name"},
        {"flags": 2, "identity": bytes(16) + b"\x01\x01" + bytes(8) + b"name"},
        {"flags": 2, "identity": bytes(16) + b"\x02\x41" + bytes(65 * 8) + b"name"},
        {"flags": 2, "identity": bytes(16) + b"\x02\x00\xff\xfe"},
    ],
    ids=str,
)
def test_fields_that_are_refused(fields):
    with pytest.raises(ContainerError):
        Header.parse(raw_header(**fields))


def test_lengths_are_refused_before_the_bytes_are_there():
    for fields in ({"chain_len": 1025}, {"flags": 2, "ident_len": 4097}):
        with pytest.raises(ContainerError, match="lengths"):
            header_size(raw_header(**fields)[:48])


def test_a_newer_version_is_named():
    with pytest.raises(ContainerError, match=r"version 9.*reads version 1"):
        header_size(raw_header(version=9))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("", ()), ("x" * 4100, ()), ("x", (0,) * 65), ("\ud800", ())],
    ids=["none", "long", "dims", "half"],
)
def test_identities_that_cannot_be_written(name, shape):
    with pytest.raises(ContainerError):
        Identity(bytes(16), Kind.TENSOR, shape, name).pack()


@pytest.mark.parametrize(
    "arguments",
    [
        (15, (), bytes(32)),
        (25, (), bytes(32)),
        (16, (), bytes(31)),
        (16, ("a.b/1",) * 9, bytes(32)),
        (16, ("a.b/1?k=" + "v" * 1017,), bytes(32)),
        (16, ("a.b/é",), bytes(32)),
        (16, (), bytes(32), None, True),
    ],
    ids=range(7),
)
def test_headers_that_cannot_be_made(arguments):
    with pytest.raises(ContainerError):
        Header(*arguments)


def test_a_seal_belongs_to_keyed_headers_only():
    with pytest.raises(ContainerError, match="seal"):
        Header(16, ("streamxf.encrypt/1",), bytes(32)).pack()
    with pytest.raises(ContainerError, match="seal"):
        Header(16, (), bytes(32), seal=bytes(32)).pack()
