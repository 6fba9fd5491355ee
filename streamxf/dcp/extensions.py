"""`Registry`, with which any reader derived from torch's finds codecs and stream transforms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO, Any

from streamxf.checkpoint.access import known_transform
from streamxf.codec import Codec
from streamxf.dcp.stock import RawTensor, is_raw
from streamxf.descriptor import Descriptor
from streamxf.errors import DescriptorError, UnsupportedError, shorten
from streamxf.format.limits import MAX_CODECS
from streamxf.keys import KeyRing, KeysLike
from streamxf.registry import CodecRegistry
from streamxf.torch_private import Extension, ExtensionRegistry, StreamTransformExtension


class Registry(ExtensionRegistry):
    """A torch ``ExtensionRegistry`` that knows streamxf's codecs, installed third-party codecs, and torch's own
    extensions.

    Parameters
    ----------
    keys : Key, bytes, several of them or a KeyRing, optional
        For checkpoints that are encrypted.
    allow : iterable of str, optional
        Names of the third-party codecs that may be used; None allows every installed one.
    """

    def __init__(self, *, keys: KeysLike = None, allow: Iterable[str] | None = None) -> None:
        super().__init__()
        self.keys = KeyRing.of(keys)
        self.codecs = CodecRegistry(allow)
        self._built: dict[Descriptor, Codec] = {}  # torch asks for each item again, and unwrapping a key takes time

    @classmethod
    def of(cls, registry: ExtensionRegistry | CodecRegistry | None) -> Registry:
        """A registry that knows what `registry` does."""
        if isinstance(registry, Registry):
            return registry
        made = cls()
        if isinstance(registry, CodecRegistry):
            made.codecs = registry
        elif registry is not None:
            made.extensions.update(registry.extensions)
        return made

    def register(self, cls: type[Any]) -> None:
        """Add a codec class, or a torch extension class of another kind. Raises DuplicateCodecError if a codec of that
        name exists already.
        """
        if issubclass(cls, Codec):
            self.codecs.register(cls)
        else:
            super().register(cls)

    def from_descriptor_list(self, descriptors: Sequence[str]) -> Sequence[Extension]:
        """Rebuild the extensions of one item, in the order in which a reader applies them.

        Raises UnknownCodecError, CodecNotAllowedError, DescriptorError, KeyMissingError or WrongKeyError if one cannot
        be rebuilt, and UnsupportedError if a foreign extension stands between or behind the codecs of the chain, or
        does not transform a stream.
        """
        if len(descriptors) > MAX_CODECS:
            raise DescriptorError(f"an item has {len(descriptors)} descriptors, {MAX_CODECS} are allowed")
        if is_raw(descriptors):
            return [RawTensor(descriptors[0])]
        codecs: list[Any] = []
        foreign: list[str] = []
        for text in descriptors:
            if not isinstance(text, str):
                raise DescriptorError("an item's descriptors are not strings")
            name = text.partition("/")[0]
            if name in self.extensions and not self.codecs.knows(name):
                foreign.append(text)
            elif foreign:
                raise UnsupportedError(
                    f"{shorten(name)!r} was applied before the foreign extension {foreign[0]!r}; they must "
                    "come before the first codec"
                )
            else:
                descriptor = Descriptor.parse(text)
                if descriptor not in self._built:
                    self._built[descriptor] = self.codecs.build(descriptor, self.keys)
                codecs.append(self._built[descriptor])
        return codecs + self._foreign(foreign)

    def undo(self, descriptor: str, stream: Any) -> IO[bytes] | None:
        """Undo the stream transform that `descriptor` names; None if it is neither torch's own nor registered here."""
        if descriptor.partition("/")[0] not in self.extensions:
            return known_transform(descriptor, stream)
        (extension,) = self._foreign([descriptor])
        return extension.transform_from(stream)

    def _foreign(self, descriptors: Iterable[str]) -> list[StreamTransformExtension]:
        built = list(super().from_descriptor_list(list(descriptors)))
        for extension in built:
            if not isinstance(extension, StreamTransformExtension):
                raise UnsupportedError(f"extension {type(extension).__name__} does not transform a stream")
        return built  # type: ignore[return-value]
