"""From a codec's name to its class: built-ins by a string, others by an entry point. Only named codecs are imported."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from streamxf.cached import cached_property
from streamxf.codec import Codec
from streamxf.descriptor import ENCRYPT, RAW, Descriptor, check_name
from streamxf.errors import CodecNotAllowedError, DuplicateCodecError, UnknownCodecError
from streamxf.keys import KeyRing
from streamxf.keys.envelope import DataKey
from streamxf.lazy import pattern

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
