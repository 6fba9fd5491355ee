"""Descriptors, texts that record a codec, as ``streamxf.checksum/1?algorithm=sha256``; docs/format/codecs.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from streamxf.errors import DescriptorError, shorten

ENCRYPT = "streamxf.encrypt"  # the one codec that containers, registries and readers know by name
RAW = "streamxf.raw"  # no codec: what torch's own readers are told of a tensor that is stored as its bare elements
VALUE = "streamxf.value"

MAX_CHAIN = 2**10
MAX_KEY_LINE = 2**16
MAX_CODEC_NAME = 64
MAX_VERSION = 2**16 - 1

_NAME = re.compile(r"[a-z][a-z0-9_-]*(?:\.[a-z][a-z0-9_-]*)+", re.ASCII)
_VERSION = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_KEY = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_VALUE = re.compile(r"[A-Za-z0-9._~:-]*", re.ASCII)

Parameters = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Descriptor:
    """A codec's name, version and parameters.

    - `name`: such as ``streamxf.zstd``; at least two parts joined by dots, at most 64 characters.
    - `version`: 1 to 65535.
    - `parameters`: those that a decoder needs, sorted by key, without those that equal their defaults.
    - `fragment`: parameters that may change while the stored blocks stay: those for encoding, and wrapped keys in the
      metadata of torch's writers. Never bound to the data.
    """

    name: str
    version: int
    parameters: Parameters = ()
    fragment: Parameters = ()

    @property
    def bound(self) -> str:
        """The descriptor without its fragment, as a container's header has it."""
        return f"{self.name}/{self.version}" + ("?" + format_parameters(self.parameters) if self.parameters else "")

    def __str__(self) -> str:
        return self.bound + ("#" + format_parameters(self.fragment) if self.fragment else "")

    @classmethod
    def parse(cls, text: str) -> Descriptor:
        """Read a descriptor. Raises DescriptorError if it is not well formed, or longer than the format allows."""
        bound, marker, fragment = text.partition("#")
        if len(bound) > MAX_CHAIN or len(fragment) > MAX_KEY_LINE:
            raise DescriptorError(f"descriptor of {len(text)} characters is longer than the format allows")
        path, question, query = bound.partition("?")
        name, slash, version = path.partition("/")
        check_name(name)
        if not slash or not _VERSION.fullmatch(version) or int(version) > MAX_VERSION:
            raise DescriptorError(
                f"descriptor {shorten(text)!r}: after the name there must be '/' and a version from 1 to 65535"
            )
        if (question and not query) or (marker and not fragment):
            raise DescriptorError(f"descriptor {shorten(text)!r}: nothing follows '?' or '#'")
        parameters = parse_parameters(query)
        if list(parameters) != sorted(parameters):
            raise DescriptorError(f"descriptor {shorten(text)!r}: the parameters after '?' are not sorted by key")
        return cls(name, int(version), parameters, parse_parameters(fragment, ("w",) if name == ENCRYPT else ()))


def check_name(name: str) -> str:
    """Return `name` if a codec may have it. Raises DescriptorError if it may not."""
    if len(name) > MAX_CODEC_NAME or not _NAME.fullmatch(name):
        raise DescriptorError(
            f"codec name {shorten(name)!r}: it must be lower-case parts joined by dots, such as 'acme.delta', of at "
            f"most {MAX_CODEC_NAME} characters"
        )
    return name


def format_parameters(parameters: Iterable[tuple[str, str]]) -> str:
    """Write parameters as ``k=v&k=v``."""
    pairs = tuple(parameters)
    for key, value in pairs:
        if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise DescriptorError(f"parameter {shorten(key)}={shorten(value)!r} cannot be written in a descriptor")
    return "&".join(f"{key}={value}" for key, value in pairs)


def parse_parameters(text: str, repeatable: tuple[str, ...] = ()) -> Parameters:
    """Read ``k=v&k=v``; a key is given once, except those in `repeatable`. Raises DescriptorError otherwise."""
    pairs: list[tuple[str, str]] = []
    seen: set[str] = set()
    for part in text.split("&") if text else ():
        key, equals, value = part.partition("=")
        if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise DescriptorError(f"descriptor parameter {shorten(part)!r} is not of the form key=value")
        if key in seen and key not in repeatable:
            raise DescriptorError(f"descriptor parameter {shorten(key)!r} is given twice")
        seen.add(key)
        pairs.append((key, value))
    return tuple(pairs)
