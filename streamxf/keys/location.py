"""Where a key comes from, as text: ``file:/run/secrets/key``, ``env:CHECKPOINT_KEY``, ``aws-kms:arn:...``.

The part before the first colon names a kind of place. Those of third parties are found through the entry-point group
``streamxf.key_providers``: each names a callable that takes the rest of the text and returns a `KeyProvider`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from typing_extensions import Buffer

from streamxf.errors import ParameterError
from streamxf.keys.key import Key
from streamxf.keys.provider import KeyProvider

PROVIDER_GROUP = "streamxf.key_providers"

KeyLike = KeyProvider | Buffer | str

_PLACES = {
    "file": "streamxf.keys.file:read_provider",
    "env": "streamxf.keys.environment:read_provider",
    "aws-kms": "streamxf.keys.aws:AwsKms",
}


def as_provider(key: KeyLike) -> KeyProvider:
    """Return `key` as a `KeyProvider`: bytes are a `Key`, and text is a location.

    Raises
    ------
    ParameterError
        If it is neither, or leads to no key.
    """
    if isinstance(key, KeyProvider):
        return key
    return find(key) if isinstance(key, str) else Key(key)


def find(location: str) -> KeyProvider:
    """The key at a location.

    Raises
    ------
    ParameterError
        If the text names no known kind of place, or what provides that place does not keep to the protocol. The text is
        not shown, in case it is a key.
    KeyFileError, KeyMissingError, KeyServiceError
        If the key cannot be read there.
    """
    scheme, colon, rest = location.partition(":")
    if not colon or scheme not in places():
        raise ParameterError(
            "a key is 32 bytes, not text (bytes.fromhex, base64), and text says where it is: 'file:PATH', "
            "'env:VARIABLE', 'aws-kms:ARN', or the place of an installed provider. This text begins with none of "
            + ", ".join(places())
        )
    provider = _load(scheme)(rest)
    if not isinstance(provider, KeyProvider):
        raise ParameterError(f"the key provider {scheme!r} returned a {type(provider).__name__}, not a KeyProvider")
    return provider


def places() -> list[str]:
    """All kinds of places at hand: those of streamxf, and of installed packages. Imports nothing."""
    return [*_PLACES, *sorted({point.name for point in _foreign()} - set(_PLACES))]


def _foreign() -> list[EntryPoint]:
    return list(entry_points(group=PROVIDER_GROUP))


def _load(scheme: str) -> Callable[[str], Any]:
    if scheme in _PLACES:
        module, _, name = _PLACES[scheme].partition(":")
        made: Callable[[str], Any] = getattr(import_module(module), name)
        return made
    points = {point.value: point for point in _foreign() if point.name == scheme}
    if len(points) > 1:
        raise ParameterError(
            f"several packages provide keys for {scheme!r}: {', '.join(sorted(points))}; uninstall all but one"
        )
    (point,) = points.values()
    try:
        loaded: Callable[[str], Any] = point.load()
    except Exception as error:  # whatever a foreign module raises while it is imported
        raise ParameterError(f"the key provider {scheme!r} ({point.value}) cannot be imported: {error}") from error
    if not callable(loaded):
        raise ParameterError(f"the key provider {scheme!r} ({point.value}) is no callable that makes a KeyProvider")
    return loaded
