"""What torch's own writers and readers call of their extensions, for a class that knows nothing of torch.

A module that knows torch's streams answers. It is imported when torch first asks; `streamxf` says which it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any, ClassVar, Self


class TorchExtension:
    """The methods of torch's ``StreamTransformExtension``."""

    _answers: ClassVar[Callable[[], Any]]
    """Gives the module that answers. It has a function for each method, which takes the same."""

    @classmethod
    def registry_name(cls) -> str:
        """The codec's name."""
        return cls._answers().registry_name(cls)  # type: ignore[no-any-return]

    @classmethod
    def from_descriptor(cls, version: str) -> Self:
        """Make the codec from the part of a descriptor behind the name's slash."""
        return cls._answers().from_descriptor(cls, version)  # type: ignore[no-any-return]

    def get_descriptor(self) -> str:
        """The descriptor's text; with the wrapped data key, for which torch's writers have no other place."""
        return type(self)._answers().get_descriptor(self)  # type: ignore[no-any-return]

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        """Wrap a stream on save. Neighbouring codecs join one container."""
        return type(self)._answers().transform_to(self, output)  # type: ignore[no-any-return]

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:
        """Wrap a stream on load. The codecs of a chain join again."""
        return type(self)._answers().transform_from(self, input)  # type: ignore[no-any-return]
