"""A codec as a value: its name, its fields, its pickle and its descriptor."""

from __future__ import annotations

import dataclasses
import pickle
from typing import get_args

from streamxf.chain import Chain
from streamxf.codec import Codec, Role
from streamxf.descriptor import Descriptor, check_name
from streamxf.errors import KeyMissingError
from streamxf.format.limits import MAX_CHAIN
from streamxf.keys.key import Secret
from streamxf.registry import BUILTINS
from streamxf.testing.case import Case, Stream, require
from streamxf.testing.data import samples


def name_and_version(case: Case) -> None:
    """The class has a well-formed name that is its own, a version from 1 to 65535, and a known role."""
    cls = type(case.codec)
    check_name(cls.name)
    require(
        cls.name in BUILTINS or not cls.name.startswith("streamxf."),
        f"{cls.name!r}: names that begin with 'streamxf.' are streamxf's; take your project's name",
    )
    require(
        type(cls.version) is int and 1 <= cls.version <= 65535,
        f"version {cls.version!r} is not a number from 1 to 65535",
    )
    require(cls.role in get_args(Role), f"role {cls.role!r} is not one of {', '.join(get_args(Role))}")
    require(case.registry.find(cls.name) is cls, f"the name {cls.name!r} does not find the class")


def frozen(case: Case) -> None:
    """The codec does not change: assigning to any attribute raises, and equal codecs have equal hashes."""
    for name in (*(field.name for field in dataclasses.fields(case.codec)), "a_new_attribute"):  # type: ignore[arg-type]
        before = getattr(case.codec, name, None)
        try:
            setattr(case.codec, name, before)
        except AttributeError:  # FrozenInstanceError is one
            continue
        require(False, f"the attribute {name!r} can be assigned to; declare the class with @dataclass(frozen=True)")
    hash(case.codec)


def pickling(case: Case) -> None:
    """A pickle of the codec makes an equal codec that works; a key is left out of it, and the copy says so."""
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(case.codec, protocol)
        copy = pickle.loads(data)
        require(type(copy) is type(case.codec), f"the copy is a {type(copy).__name__}")
        require(copy == case.codec and hash(copy) == hash(case.codec), f"the copy {copy!r} differs from {case.codec!r}")
        if case.keyed:
            secrets = [key.reveal() for key in case.keys if isinstance(key, Secret)]
            require(not any(secret in data for secret in secrets), "the pickle holds the key")
            try:
                Stream(copy)
            except KeyMissingError:
                continue
            require(False, "the copy from a pickle has no key, and yet it starts a stream")
        else:
            _check_reads(copy, case.codec, "the copy from a pickle")
            _check_reads(case.codec, copy, "the codec, reading what its copy wrote,")


def descriptor(case: Case) -> None:
    """The descriptor's text makes the codec again; without its fragment it makes one that reads the same data."""
    codec = case.codec
    described = codec.descriptor()
    require(Descriptor.parse(str(described)) == described, f"{str(described)!r} is read as another descriptor")
    require(
        (described.name, described.version) == (codec.name, codec.version),
        f"{described} is not {codec.name}'s own name and version",
    )
    require(len(described.bound) <= MAX_CHAIN, f"{len(described.bound)} characters do not fit into a header")
    rebuilt = case.rebuild(codec.get_descriptor())
    require(type(rebuilt) is type(codec), f"{described} makes a {type(rebuilt).__name__}")
    _check_reads(rebuilt, codec, f"the codec made from {described}")
    if case.keyed:  # its key is in the fragment, and has no other place here
        return
    require(rebuilt == codec, f"{described} makes {rebuilt!r}, not {codec!r}")
    bare = case.rebuild(described.bound)
    _check_reads(bare, codec, f"a reader's codec, made from {described.bound} alone,")
    text = str(Chain([codec]))
    parsed = Chain.parse(text, keys=case.keys, codecs=case.registry)
    require(parsed.codecs == (codec,), f"the chain text {text!r} makes {parsed.codecs!r}, not {codec!r}")


def _check_reads(reader: Codec, writer: Codec, what: str) -> None:
    stream = Stream(writer).read_with(reader)
    for block in samples():
        found = bytes(stream.decode(bytes(stream.encode(block))))
        require(found == block, f"{what} does not decode a block of {len(block)} bytes")
