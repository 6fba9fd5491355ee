"""`Codec`, the base class of every codec, and the facts about block and stream that it is given.

A codec is one reversible transform of a block of bytes. It is a frozen dataclass: its fields are its parameters, it
holds no state of any stream, and one object is shared by all threads. `Codec.start` makes a stream's state (a derived
key, a table) once, and it comes back with every block.

`CodecRegistry` leads from a codec's name to its class: built-ins by a string, others by an entry point. Only named
codecs are imported.
"""

from __future__ import annotations

import abc
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_type_hints

from typing_extensions import Buffer

from streamxf.buffers import Scratch
from streamxf.cached import cached_property
from streamxf.descriptor import ENCRYPT, RAW, Descriptor, check_name
from streamxf.errors import CodecNotAllowedError, DescriptorError, DuplicateCodecError, UnknownCodecError, shorten
from streamxf.extension import TorchExtension
from streamxf.lazy import pattern

if TYPE_CHECKING:
    from streamxf.keys import KeyRing
    from streamxf.keys.envelope import DataKey

Role = Literal["transform", "compression", "checksum", "encryption"]
"""What a codec is for, which decides its place in a chain."""

WholeDecoder = Callable[[memoryview, memoryview], bool]
"""Decodes a block into memory of exactly its size. False leaves the block to the codecs, one after the other, which say
what is wrong with it; the memory's contents are undefined then.
"""

_COPIED = 16 * 1024  # bytes; a block of no more is copied sooner than it is found out where it lies


@dataclass(slots=True)
class StreamInfo:
    """Facts about a stream, the same for all of its blocks.

    - `block_size`: bytes in every block but the last.
    - `salt`: 16 random bytes, fresh for this stream.
    - `header_digest`: SHA-256 of the container's header (H in docs/format.md): it binds chain, block size and identity.
    - `item`: the item's name in the state dict, when known.
    - `dtype`, `row`: when known, and on encoding only: the name of the item's torch dtype (``"bfloat16"``), and how
      many elements a row of it has, if it is a matrix.
    """

    block_size: int
    salt: bytes
    header_digest: bytes
    item: str | None = None
    dtype: str | None = None
    row: int | None = None


@dataclass(slots=True)
class BlockInfo:
    """Facts about one block on its way through one codec.

    - `index`, `last`: the block's number in its stream, from 0, and whether it is the last one.
    - `limit`: the most bytes that the codec may return; on decoding it must refuse more *before* it allocates them.
    - `state`: the result of the codec's own `Codec.start` for this stream.
    - `scratch`: ``scratch(size)`` returns `size` bytes of reused writable memory, valid until the block has left the
      chain. Returning (a part of) it, which is optional, saves an allocation. A second call may return it again.
    - `memory`: all scratch memory of the block; `extend` uses it.
    - `beneath`: for the first codec of a chain, gives the block at the same place in an earlier save, where there is
      one, decoded: what is encoded may be its difference from that. The memory stays as it is meanwhile.
    """

    index: int
    last: bool
    limit: int
    state: Any
    stream: StreamInfo
    scratch: Callable[[int], memoryview]
    memory: Scratch | None = dataclasses.field(default=None, repr=False)
    beneath: Callable[[], memoryview] | None = dataclasses.field(default=None, repr=False)

    def extend(self, block: memoryview, size: int) -> memoryview:
        """Return writable memory that begins with `block` and has `size` more bytes of undefined contents.

        A block above 16 KiB is not copied if the codec before left it at the start of the chain's own scratch memory,
        as most codecs do; otherwise it is copied into `scratch` memory. For `encode`; use it instead of `scratch` to
        append something to a block.
        """
        out = self.memory.extended(block, size) if self.memory is not None and len(block) > _COPIED else None
        if out is None:
            out = self.scratch(len(block) + size)
            out[: len(block)] = block
        return out


class Codec(TorchExtension, abc.ABC):
    """One reversible transform of a block: the class that a codec's author derives from.

    A subclass is a frozen dataclass with a `name`, and it implements `encode` and `decode`. Its fields are its
    parameters, of type int, str or bool; a field made with ``field(metadata={"encode_only": True})`` affects encoding
    only and is never bound to the data. Check parameters in ``__post_init__`` and raise
    `streamxf.errors.ParameterError` with the allowed range.

    ``streamxf.testing`` holds the suite that every codec must pass; docs/writing-a-codec.md walks through an example.

    - `name`: the name in descriptors and of the entry point, such as ``acme.delta``.
    - `version`: increased whenever the meaning of the encoded bytes changes.
    - `role`: ``"transform"``, ``"compression"``, ``"checksum"`` or ``"encryption"``; it determines the codec's place in
      a chain. Only a checksum may follow encryption.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    role: ClassVar[Role] = "transform"

    @classmethod
    def implementation(cls) -> str | None:
        """The name, for reports, of the implementation that runs in this process; None if there is only one."""
        return None

    @abc.abstractmethod
    def encode(self, block: memoryview, info: BlockInfo) -> Buffer:
        """Transform one block on save. The result may be longer than the block, up to ``info.limit``."""

    @abc.abstractmethod
    def decode(self, block: memoryview, info: BlockInfo) -> Buffer:
        """Undo `encode`.

        `block` comes from storage and may contain anything. Raise `streamxf.errors.CodecError` (or any exception) for
        bytes that `encode` cannot have made, including trailing ones, and never produce more than ``info.limit`` bytes.
        """

    def whole_decoder(self, checksum: Codec | None) -> WholeDecoder | None:
        """What undoes this codec as the first of a chain, and the `checksum` behind it, in one step; None if nothing
        does. For codecs whose blocks are decoded without the interpreter's lock: each time that it is taken again, a
        thread may have to wait.
        """
        return None

    def start(self, stream: StreamInfo) -> Any:
        """Make ``info.state``, which all blocks of one stream and all threads share, so it must not change."""
        return None

    def renew(self) -> Self:
        """Return the codec for one save: a new object only if it draws random values for each save."""
        return self

    def descriptor(self) -> Descriptor:
        """Describe the codec so that a reader can `rebuild` it."""
        bound: list[tuple[str, str]] = []
        fragment: list[tuple[str, str]] = []
        for field in self.parameter_fields():
            value = getattr(self, field.name)
            if field.metadata.get("encode_only"):
                fragment.append((field.name, _to_text(value)))
            elif value != field.default:
                bound.append((field.name, _to_text(value)))
        return Descriptor(self.name, self.version, tuple(sorted(bound)), tuple(sorted(fragment)))

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> Self:
        """Make the codec from parameters in their text form. Raises DescriptorError if a parameter is unknown or its
        text is not of its type, and ParameterError if a value is out of range.
        """
        hints = _hints(cls)
        known = {field.name: hints[field.name] for field in cls.parameter_fields()}
        values: dict[str, Any] = {}
        for key, text in parameters.items():
            if key not in known:
                takes = ", ".join(sorted(known)) or "none"
                raise DescriptorError(f"codec {cls.name} has no parameter {shorten(key)!r}; it takes: {takes}")
            values[key] = _from_text(cls.name, key, text, known[key])
        return cls(**values)

    @classmethod
    def rebuild(cls, descriptor: Descriptor, keys: KeyRing | DataKey | None = None) -> Self:
        """Make the codec that a descriptor describes; `keys` are, for a codec that encrypts, keys that may open its
        data key, or that data key. Raises as `from_parameters`; also if the codec does not write such a descriptor.
        """
        codec = cls.from_parameters(dict(descriptor.parameters + descriptor.fragment))
        own = codec.descriptor()
        # nothing binds a fragment to the data, so it must not say how to decode it
        free = {key for key, _ in own.fragment}
        if own.parameters != descriptor.parameters or not all(key in free for key, _ in descriptor.fragment):
            raise DescriptorError(
                f"descriptor {shorten(str(descriptor))!r}: a parameter has its default before '#', or is on the wrong "
                f"side of '#'; {cls.name} itself writes {shorten(str(own))!r}"
            )
        return codec

    @classmethod
    def from_text(cls, parameters: Mapping[str, str], keys: KeyRing) -> Self:
        """Make the codec for a chain's text, ``zstd:level=3``, as `from_parameters`; `keys` for one that encrypts."""
        return cls.from_parameters(parameters)

    @classmethod
    def parameter_fields(cls) -> list[dataclasses.Field[Any]]:
        """The dataclass fields that are its parameters."""
        if not dataclasses.is_dataclass(cls):
            raise TypeError(f"codec {cls.__qualname__} must be a frozen dataclass")
        return [field for field in dataclasses.fields(cls) if field.init]


_hints = cache(get_type_hints)  # which compiles each one anew


def _to_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | str):
        return str(value)
    raise TypeError(f"a codec's parameters are int, str or bool, not {type(value).__name__}")


def _from_text(name: str, key: str, text: str, kind: object) -> int | str | bool:
    if kind is str:
        return text
    if kind is bool and text in ("true", "false"):
        return text == "true"
    if kind is int and len(text) <= 20:
        with suppress(ValueError):
            if str(value := int(text)) == text:
                return value
    raise DescriptorError(f"codec {name}: {key}={shorten(text)!r} is not {getattr(kind, '__name__', kind)}")


ENTRY_POINT_GROUP = "streamxf.codecs"

BUILTINS = {
    "streamxf.zstd": "streamxf.codecs.zstd:ZStandard",
    "streamxf.lz4": "streamxf.codecs.lz4:LZ4",
    "streamxf.floatzip": "streamxf.codecs.floatzip:FloatZip",
    "streamxf.checksum": "streamxf.codecs.checksum:Checksum",
    ENCRYPT: "streamxf.codecs.encrypt:Encrypt",
}

_REQUIREMENT = pattern(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?==[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class Provider:
    """The package that a codec comes from."""

    codec: str
    requirement: str

    @classmethod
    def parse(cls, text: str) -> Provider | None:
        """Read ``acme.delta=acme-codec==1.0``; None for anything else: it is from a checkpoint, and people see it."""
        codec, _, requirement = text.partition("=")
        return cls(codec, requirement) if _REQUIREMENT.fullmatch(requirement) else None

    def __str__(self) -> str:
        return f"{self.codec}={self.requirement}"


class CodecRegistry:
    """Finds codec classes by name: built-in ones, and third-party ones that `allow` names; None allows all of them."""

    def __init__(self, allow: Iterable[str] | None = None) -> None:
        self._allow = None if allow is None else frozenset(check_name(name) for name in allow)
        self._registered: dict[str, type[Codec]] = {}

    @cached_property
    def _entry_points(self) -> dict[str, list[EntryPoint]]:
        found: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=ENTRY_POINT_GROUP):
            if point.name.startswith("streamxf."):  # reserved: any that is not built in is of another version
                continue
            known = found.setdefault(point.name, [])
            # one package can be seen twice on sys.path, once installed and once as a source tree
            if not any((point.value, _package(point)) == (other.value, _package(other)) for other in known):
                known.append(point)
        return found

    def register(self, cls: type[Codec]) -> None:
        """Add a codec class that no entry point names. Raises DuplicateCodecError if another one has its name."""
        name = check_name(cls.name)
        if self._registered.get(name) is cls:
            return
        if self.knows(name):
            raise DuplicateCodecError(
                f"a codec named {name!r} exists already; choose a name of your own, such as "
                f"'yourcompany.{name.rpartition('.')[2]}'"
            )
        self._registered[name] = cls

    def knows(self, name: str) -> bool:
        """Whether a codec of that name is available. Imports nothing."""
        return name in BUILTINS or name in self._registered or name in self._entry_points

    def names(self) -> list[str]:
        """All available names, sorted. Imports nothing."""
        return sorted({*BUILTINS, *self._registered, *self._entry_points})

    @staticmethod
    def short_name(name: str) -> str:
        """A name as the text form of a chain has it: ``zstd`` for ``streamxf.zstd``."""
        return name.removeprefix("streamxf.") if name in BUILTINS or name == RAW else name

    def packages(self, name: str) -> list[str]:
        """The installed packages that claim `name`, as in ``acme-codec==1.0``; none for a built-in. Imports nothing."""
        points = [] if name in BUILTINS else self._entry_points.get(name, [])
        return [_package(point) for point in points]

    def find(self, name: str, providers: Iterable[Provider] = ()) -> type[Codec]:
        """Return the class for `name`, as in a descriptor, importing only that one. `providers` are the packages that
        the checkpoint names for its codecs, for the error.

        Raises UnknownCodecError if no installed package has a codec of that name, or its entry point leads elsewhere;
        CodecNotAllowedError if `allow` does not hold it; DuplicateCodecError if two packages claim it.
        """
        if name in BUILTINS:
            return _load(EntryPoint(name, BUILTINS[name], ENTRY_POINT_GROUP))
        if name in self._registered:
            return self._registered[name]
        points = self._entry_points.get(name, [])
        if not points:
            raise UnknownCodecError(what_to_install(name, providers))
        if self._allow is not None and name not in self._allow:
            raise CodecNotAllowedError(
                f"codec {name!r} is installed ({_package(points[0])}) but not in allow=; add it there if you trust it"
            )
        if len(points) > 1:
            claims = ", ".join(f"{_package(point)} ({point.value})" for point in points)
            raise DuplicateCodecError(f"codec {name!r} is claimed by several packages: {claims}; uninstall all but one")
        return _load(points[0])

    def build(
        self, descriptor: Descriptor, keys: KeyRing | DataKey | None = None, providers: Iterable[Provider] = ()
    ) -> Codec:
        """Make a descriptor's codec; raises as `find`, `Codec.rebuild`; UnknownCodecError for an unknown version."""
        cls = self.find(descriptor.name, providers)
        if descriptor.version != cls.version:
            raise UnknownCodecError(
                f"codec {descriptor.name!r}: the data has version {descriptor.version}, the installed codec reads "
                f"version {cls.version}; " + what_to_install(descriptor.name, providers)
            )
        return cls.rebuild(descriptor, keys)

    def provider(self, codec: Codec) -> Provider | None:
        """The third-party package that `codec` comes from; None for a built-in, or where no package says so."""
        packages = self.packages(codec.name)
        return Provider.parse(f"{codec.name}={packages[0]}") if len(packages) == 1 else None


def _load(point: EntryPoint) -> type[Codec]:
    try:
        cls = point.load()
    except Exception as error:  # whatever a foreign module raises while it is imported
        raise UnknownCodecError(
            f"codec {point.name!r} is named by {_package(point) or 'streamxf'}, but {point.value} cannot be "
            f"imported: {error}"
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, Codec) and getattr(cls, "name", None) == point.name):
        raise UnknownCodecError(
            f"{point.value} of {_package(point)} is not a streamxf.Codec whose name is {point.name!r}"
        )
    return cls


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name}=={point.dist.version}" if point.dist is not None else ""


def what_to_install(name: str, providers: Iterable[Provider]) -> str:
    """Says that a codec or stream transform is not available, and what would help."""
    recorded = [provider.requirement for provider in providers if provider.codec == name]
    if recorded:
        return (
            f"codec {name!r} was provided by the package {recorded[0]}, which is not installed here in a version that "
            "reads it; install it if you trust it"
        )
    return (
        f"codec {name!r} is not installed here, and the data does not say which package provides it; install the "
        f"package that registers it in the entry-point group {ENTRY_POINT_GROUP!r}"
    )


def providers_in(modules: Iterable[object] | None) -> list[Provider]:
    """The providers among the entries of DCP's ``StorageMeta.modules``; anything else is passed over."""
    parsed = [Provider.parse(entry) for entry in (modules or ()) if isinstance(entry, str)]
    return [provider for provider in parsed if provider is not None]
