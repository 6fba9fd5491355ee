"""`Secret`: 32 bytes that are never shown."""

from __future__ import annotations

import os
import re
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar, NoReturn, Self

from typing_extensions import Buffer

from streamxf.errors import ParameterError

SECRET_BYTES = 32

_TEXT = re.compile(rb"[A-Za-z0-9 _./+=:-]+|[a-z][a-z0-9-]*:[ -~]+")


class Uncopied:
    """What `copy` gives back as it is, since by way of a pickle it would lose its keys, or fail."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class Secret(Uncopied):
    """Base of every key that must stay secret.

    Its material never appears in a repr, an error, a log, a descriptor or an ordinary pickle. Only
    ``multiprocessing``'s own pipes and queues carry it (``dcp.async_save`` by process needs that).
    """

    __slots__ = ("_material", "id")

    noun: ClassVar[str] = "a key"

    id: str
    _material: bytes

    def __init__(self, material: Buffer) -> None:
        # what only looks like a key is refused: the mistake would go unnoticed, since it encrypts and decrypts
        if isinstance(material, str):
            raise ParameterError(
                f"{self.noun} is 32 bytes, not text: decode it first (bytes.fromhex, base64), and never use a "
                "passphrase as a key"
            )
        secret = as_bytes(material, self.noun)
        if len(secret) != SECRET_BYTES:
            raise ParameterError(
                f"{self.noun} is {SECRET_BYTES} bytes long; this one has {len(secret)}. Make one with "
                f"streamxf.{type(self).__name__}.generate()"
            )
        if reason := _suspicion(secret):
            raise ParameterError(
                f"{self.noun} is {SECRET_BYTES} random bytes, and {reason}. Make one with "
                f"streamxf.{type(self).__name__}.generate()"
            )
        object.__setattr__(self, "_material", secret)

    @classmethod
    def generate(cls) -> Self:
        """Draw a new one from the operating system's random source."""
        return cls(draw_secret())

    def reveal(self) -> bytes:
        """Return the 32 bytes, to store them elsewhere; of streamxf, only `streamxf.keys.write_key` does that."""
        return self._material

    def _arguments(self) -> tuple[Any, ...]:
        """The constructor's arguments for the same secret."""
        return (self._material,)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # ForkingPickler serves multiprocessing's connections: to the children that it starts, and to others only
        # through a Listener that was opened on purpose, with an authentication key. It goes before __reduce__.
        ForkingPickler.register(cls, _to_own_child)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} cannot be changed")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled: it could end up on disk or in a log; pass it on as a secret "
            "(a file, an environment variable) and make it there"
        )


def as_bytes(data: Buffer, noun: str) -> bytes:
    """A copy of a buffer of bytes; raises ParameterError for anything else, even a number, which `bytes` would take."""
    try:
        view = memoryview(data)
    except TypeError:
        raise ParameterError(f"{noun} is made of bytes, not of {type(data).__name__}") from None
    if view.format not in ("B", "b", "c"):
        raise ParameterError(f"{noun} is made of bytes; this {type(data).__name__} has items of another kind")
    return bytes(view)


def draw_secret() -> bytes:
    """32 bytes from the operating system's random source that no `Secret` mistakes for text."""
    while True:
        secret = os.urandom(SECRET_BYTES)
        if not _suspicion(secret):
            return secret


def _suspicion(secret: bytes) -> str | None:
    """Why 32 bytes cannot have been drawn at random; None if they can."""
    if len(set(secret)) == 1:
        return "these are all the same"
    if _TEXT.fullmatch(secret):
        return "these are text: a part of a key in hexadecimal or base64, a location ('file:...') or a passphrase"
    return None


def _to_own_child(secret: Secret) -> tuple[Any, ...]:
    return type(secret), secret._arguments()
