"""`Access`: keys and terms for reading, one frozen object for every reader. `Renaming`: the names of items as shown."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import IO, Any, Literal, Protocol, Self, TypedDict, runtime_checkable

from streamxf.budget import MAX_EXPANSION, Budget
from streamxf.chain import Chain
from streamxf.codec import CodecRegistry
from streamxf.errors import IdentityError, MetadataError, ParameterError, PolicyError, UnsupportedError
from streamxf.format.items import Item, Path, check_name
from streamxf.format.limits import MAX_STEP
from streamxf.keys import KeyRing, KeysLike, TrustLike, VerifyKey
from streamxf.lazy import pattern, zstandard
from streamxf.torchsave.objects import Objects
from streamxf.wording import some

Names = Mapping[str, str]
"""From old names of items to new ones. Each ``*`` stands for the same text in both, however long, in order:
``{"module.*": "*"}`` removes a prefix. A whole name counts before a pattern, and the first pattern that fits before
others.
"""


class Renaming:
    """Raises ParameterError if `names` are not a mapping as `Names` says; `given` are the same."""

    def __init__(self, names: Names) -> None:
        if not isinstance(names, Mapping) or not all(isinstance(each, str) for pair in names.items() for each in pair):
            raise ParameterError("rename= is a mapping from old names to new ones, which are text")
        self.given = dict(names)
        for old, new in names.items():
            if old.count("*") != new.count("*"):
                raise ParameterError(f"{old!r} to {new!r}: both names need the same number of '*'")
        parts = {old: map(re.escape, old.split("*")) for old in names if "*" in old}
        self._patterns = {old: re.compile("(.*)".join(each), re.DOTALL) for old, each in parts.items()}

    def of(self, names: Collection[str]) -> dict[str, str]:
        """The new name of each, in their order. Raises ParameterError if an item's would be empty or another's, too."""
        olds: dict[str, list[str]] = {}
        for old in names:
            try:
                olds.setdefault(check_name(self._new(old)), []).append(old)
            except (MetadataError, UnsupportedError):
                raise ParameterError(f"the new name of {old!r} would be empty, or not valid Unicode") from None
        for new, shared in olds.items():
            if len(shared) > 1:
                raise ParameterError(f"several items would be named {new!r}: {some(shared)}")
        return {old: new for new, (old,) in olds.items()}

    def items(self, items: Mapping[str, Item]) -> dict[str, Item]:
        """Items by new names, which their paths in a nested state dict follow; an item itself keeps its `name`."""
        names = self.of(items)
        changed = [(old, item.path) for old, item in items.items() if item.path and names[old] != old]
        moved = {old: _path(path, old, names[old]) for old, path in changed}
        return {names[old]: replace(item, path=moved[old]) if old in moved else item for old, item in items.items()}

    def unused(self, names: Collection[str], *, patterns: bool = False) -> list[str]:
        """Whole names that are not among `names`, unless the new ones are already, and `patterns` that fit none."""
        free = [old for old, new in self.given.items() if "*" not in old and old not in names and new not in names]
        wanted = self._patterns.items() if patterns else ()
        return free + [old for old, pattern in wanted if not any(map(pattern.fullmatch, names))]

    def _new(self, name: str) -> str:
        if name in self.given:
            return self.given[name]
        for old, text in self._patterns.items():
            if (match := text.fullmatch(name)) is not None:
                texts = zip_longest(self.given[old].split("*"), match.groups(), fillvalue="")
                return "".join(chain.from_iterable(texts))
        return name


def _path(path: Path, old: str, new: str) -> Path:
    """Where an item stands once it has another name. The steps at either end that both names have stay; what is between
    them is one step. Steps that the old name does not have stay, too.
    """
    begin = last = len(path)
    length = -1
    while begin and length < len(old):
        begin -= 1
        length += 1 + len(str(path[begin]))
    if ".".join(map(str, path[begin:])) != old:
        return path
    while begin < last - 1 and new.startswith(f"{path[begin]}."):
        new = new.removeprefix(f"{path[begin]}.")
        begin += 1
    while last > begin and new.endswith(f".{path[last - 1]}"):
        last -= 1
        new = new.removesuffix(f".{path[last]}")
    if last > begin and new == str(path[last - 1]):
        return path[:begin] + path[last - 1 :]
    numbered = last - begin == 1 and isinstance(path[begin], int) and new.isdecimal() and new.isascii()
    return (*path[:begin], int(new) if numbered and len(new) < len(str(MAX_STEP)) else new, *path[last:])


Transform = Callable[[str, Any], IO[bytes] | None]
"""From a stream transform's descriptor and a stream that it made to what went into it; None if it is not known."""


def known_transform(descriptor: str, stream: Any) -> IO[bytes] | None:
    if descriptor != "stream.zstd/1":
        return None
    return zstandard.ZstdDecompressor().stream_reader(stream)


@runtime_checkable
class RegistryLike(Protocol):
    """What `streamxf.Registry`, a registry of torch's, has for readers: `undo` is a `Transform`."""

    codecs: CodecRegistry
    keys: KeyRing

    def undo(self, descriptor: str, stream: Any) -> IO[bytes] | None: ...


Codecs = CodecRegistry | RegistryLike | None

SaveIds = str | Collection[str] | None
"""The id of a save, as ``writer.save_id`` gave it, or those of several ranks whose metadata is their own."""

_ID = pattern(r"[0-9a-f]{32}", re.ASCII)

Require = Literal["published", "bound", "encrypted"]
REQUIREMENTS: tuple[Require, ...] = ("published", "bound", "encrypted")


class AccessOptions(TypedDict, total=False):
    """The arguments of every tool that say how it reads, as in `Checkpoint`."""

    keys: KeysLike
    trust: TrustLike
    allow_unsigned: bool
    require: Require | None
    expect_save_id: SaveIds
    codecs: Codecs
    max_expansion: int


@dataclass(frozen=True)
class Access:
    """The keys and terms for reading a checkpoint.

    - `require`: minimum protection to accept; None accepts any item.
    - `expected_saves`: the only saves that are acceptable.
    - `transform`: undoes stream transforms. `objects`: makes objects; `load_around` those in a `TorchFile`.
    - `refuses_plaintext`: the job that reads encrypts what it saves, so nothing else is acceptable, even without a key.
    - `trust`: whose signatures count, also where nothing is encrypted, or no key opens it.
    - `renaming`: the names under which items are shown.
    """

    keys: KeyRing = field(default_factory=KeyRing)
    require: Require | None = None
    expected_saves: frozenset[str] | None = None
    codecs: CodecRegistry = field(default_factory=CodecRegistry)
    transform: Transform = known_transform
    objects: Objects = field(default_factory=Objects)
    refuses_plaintext: bool = False
    trust: tuple[VerifyKey, ...] = ()
    renaming: Renaming | None = None

    def __post_init__(self) -> None:
        if self.refuses_plaintext and self.require is None:
            object.__setattr__(self, "require", "published")

    @classmethod
    def of(
        cls,
        keys: KeysLike = None,
        trust: TrustLike = None,
        allow_unsigned: bool = False,
        require: Require | None = None,
        expect_save_id: SaveIds = None,
        codecs: Codecs = None,
        weights_only: bool = True,
        safe_globals: Sequence[Any] = (),
        max_expansion: int = MAX_EXPANSION,
        rename: Names | None = None,
    ) -> Self:
        """From the arguments of public functions, which have these names; raises ParameterError."""
        transform = known_transform
        if isinstance(codecs, RegistryLike):
            if (own := len(codecs.keys) or codecs.keys.trust) and keys is not None:
                raise ParameterError("keys= was given, and the registry has keys, too; pass all of them in one place")
            keys = codecs.keys if own else keys
            transform, codecs = codecs.undo, codecs.codecs
        elif codecs is not None and not isinstance(codecs, CodecRegistry):
            raise ParameterError(f"codecs= takes a streamxf.CodecRegistry or Registry, not {type(codecs).__name__}")
        ring = KeyRing.of(keys, trust, allow_unsigned)
        if require is not None and require not in REQUIREMENTS:
            raise ParameterError(f"require={require!r}: it is one of {', '.join(map(repr, REQUIREMENTS))}")
        if require is not None and not len(ring):
            raise ParameterError(f"require={require!r} needs keys: only encrypted checkpoints can be {require}")
        required = require or ("published" if len(ring) else None)
        saves, objects = _save_ids(expect_save_id), Objects(weights_only, safe_globals, max_expansion)
        renaming = None if rename is None else Renaming(rename)
        about = codecs or CodecRegistry(), transform, objects
        return cls(ring, required, saves, *about, trust=ring.trust, renaming=renaming)

    @classmethod
    def for_chain(
        cls, chain: Chain, keys: KeysLike = None, trust: TrustLike = None, allow_unsigned: bool = False, **options: Any
    ) -> Self:
        """`of` these arguments, or as `Chain.ring` has them, `under` the chain of a job, whose signer it trusts."""
        ring = chain.ring(keys, trust, allow_unsigned)
        made = cls.of(ring, **options).under(chain)
        return made if ring.trust else replace(made, trust=chain.trusted(trust))

    def under(self, chain: Chain) -> Self:
        """The same for a job that saves through `chain`: if that encrypts, nothing else is acceptable."""
        return replace(self, refuses_plaintext=True) if chain.encryption is not None else self

    def lenient(self) -> Self:
        """The same keys, for checkpoints that need be neither encrypted nor signed."""
        return replace(self, refuses_plaintext=False, require=None, trust=())

    def refuse_bare(self, what: str) -> None:
        """Raise PolicyError for what is neither encrypted nor signed, if one of that is required."""
        if self.require is not None:
            raise self.not_encrypted(what)
        if self.trust:
            raise PolicyError(
                f"{what} is not signed, and signers are trusted, one of whom has to sign (trust); leave them out "
                "if you know where it comes from"
            )

    def not_encrypted(self, what: str) -> PolicyError:
        why = "the chain in use encrypts" if self.refuses_plaintext else "keys were given"
        return PolicyError(f"{what} is not encrypted, and {why}; {self.way_out}")

    @property
    def way_out(self) -> str:
        """Advice on refused plaintext, for errors."""
        known, reader = "if you know that it was not encrypted", "load it with FileSystemReader(path, require=None)"
        if self.refuses_plaintext:
            return (
                f"{known}, {reader}, or, to begin encrypting a run, once with "
                "CheckpointManager.resume(state, plaintext=True)"
            )
        if os.environ.get("STREAMXF_KEYS"):
            return f"unset STREAMXF_KEYS {known}, or {reader}"
        return f"leave the keys out {known}"

    def budget(self, stored: int) -> Budget:
        return Budget(self.objects.max_expansion, stored)

    def check_save(self, save_id: str | None) -> None:
        """Raise IdentityError if a checkpoint with this id is not the expected save, PolicyError if it has no id."""
        if self.expected_saves is None:
            return
        if save_id is None:
            raise PolicyError(
                f"the save {', '.join(sorted(self.expected_saves))} is expected, and this metadata has no index that "
                "says which save it is; leave expect_save_id out to read it"
            )
        if save_id not in self.expected_saves:
            raise IdentityError(
                f"this is the save {save_id}, and {', '.join(sorted(self.expected_saves))} was expected: another "
                "checkpoint was put in its place, or saved over it. Nothing of it was read or changed"
            )


def _save_ids(given: SaveIds) -> frozenset[str] | None:
    if given is None:
        return None
    found = (given,) if isinstance(given, str) or not isinstance(given, Collection) else tuple(given)
    if not found:
        raise ParameterError("expect_save_id= is empty, so no save would be the right one; leave it out for any")
    for save_id in found:
        if not isinstance(save_id, str) or _ID.fullmatch(save_id) is None:
            raise ParameterError(
                f"expect_save_id={save_id!r:.80}: a save's id is 32 lower-case hexadecimal digits, as writer.save_id "
                "gives it"
            )
    return frozenset(found)
