"""torch's extensions: `Extensions`, a writer's list of foreign stream transforms and then the chain, and the streams
that it opens; and `Registry`, with which any reader derived from torch's finds both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any

from streamxf.buffers import Writable
from streamxf.chain import MAX_CODECS, Chain
from streamxf.checkpoint.access import Access, known_transform
from streamxf.codec import Codec
from streamxf.codecs.encrypt import Encrypt
from streamxf.descriptor import Descriptor, shorten
from streamxf.errors import ChainError, DescriptorError, ParameterError, UnsupportedError
from streamxf.format.header import Identity
from streamxf.format.limits import DEFAULT_BLOCK_LOG2
from streamxf.keys import KeyRing, KeysLike
from streamxf.registry import CodecRegistry
from streamxf.report import Meter
from streamxf.stream.encoder import ContainerEncoder
from streamxf.stream.writer import StreamWriter
from streamxf.torch_private import Extension, ExtensionRegistry, StreamTransformExtension


@dataclass(frozen=True)
class Extensions:
    """What the data passes on save: foreign extensions as streams, then the codecs of the chain as blocks."""

    foreign: tuple[StreamTransformExtension, ...]
    chain: Chain

    @classmethod
    def of(cls, extensions: Iterable[Any] | str | Codec) -> Extensions:
        """Part a list of extensions, in the order in which data flows through them; raises ChainError if the codecs
        break a rule of order, or a foreign extension follows a codec, and UnsupportedError for what is no stream
        transform.
        """
        if isinstance(extensions, str):
            extensions = Chain.parse(extensions)
        elif isinstance(extensions, Codec | StreamTransformExtension):
            extensions = (extensions,)
        foreign: list[StreamTransformExtension] = []
        codecs: list[Codec] = []
        for extension in extensions:
            if isinstance(extension, Codec):
                codecs.append(extension)
            elif not isinstance(extension, StreamTransformExtension):
                raise UnsupportedError(
                    f"{extension!r} is neither a streamxf codec nor a torch StreamTransformExtension"
                )
            elif codecs:
                raise ChainError(
                    f"{type(extension).__name__} comes after {type(codecs[-1]).__name__}: another package's "
                    "stream extension cannot run on blocks, so it must come before the first codec"
                )
            else:
                foreign.append(extension)
        return cls(tuple(foreign), Chain(codecs))

    def renew(self) -> Extensions:
        return Extensions(self.foreign, self.chain.renew())

    def providers(self) -> list[str]:
        """The third-party packages that the codecs come from, as ``StorageMeta.modules`` records them."""
        registry = CodecRegistry()
        return [str(provider) for provider in map(registry.provider, self.chain) if provider is not None]

    def summary(self) -> str:
        """The extensions in save order, without what differs from process to process, and the ids of the keys."""
        names = [extension.get_descriptor() for extension in self.foreign] + list(self.chain.bound)
        text = " > ".join(names or ["no extension"])
        if (encryption := self.encryption) is not None:
            signer = [f"signed by {encryption.signer.id}"] if encryption.signer is not None else []
            text += f" under key {', '.join([*encryption.key_ids, *signer])}"
        return text

    @property
    def recorded(self) -> tuple[str, ...]:
        """The descriptors of a `Place`, in save order."""
        foreign = (f"!{extension.get_descriptor()}" for extension in self.foreign)
        return (*foreign, *map(str, self.chain.descriptors))

    @property
    def in_blocks(self) -> bool:
        """Whether data goes through codecs alone, so that it need not be a stream."""
        return len(self.chain) > 0 and not self.foreign

    @property
    def encryption(self) -> Encrypt | None:
        return self.chain.encryption

    @property
    def hashed(self) -> bool:
        """Whether containers carry a SHA-256 of each block, because the save is signed."""
        return self.encryption is not None and self.encryption.hashed

    def open(
        self,
        raw: Writable,
        identity: Identity,
        *,
        published: bool = False,
        block_log2: int = DEFAULT_BLOCK_LOG2,
        meter: Meter | None = None,
    ) -> SaveStream:
        """Open the streams for one item, into which its bytes are written."""
        container = None
        if len(self.chain):
            encoder = ContainerEncoder(
                self.chain,
                transforms=tuple(f"!{extension.get_descriptor()}" for extension in self.foreign),
                identity=identity,
                published=published,
                hashed=self.hashed and published,
                block_log2=block_log2,
                meter=meter,
            )
            container = StreamWriter(raw, encoder, meter=meter)
        stream: Any = container if container is not None else _Unclosable(raw)
        for extension in reversed(self.foreign):
            stream = extension.transform_to(stream)
        return SaveStream(stream, container)


@dataclass(frozen=True)
class SaveStream:
    """The streams of one item that is being saved: `stream` takes its bytes, and blocks leave by `container`."""

    stream: Any
    container: StreamWriter | None

    def close(self) -> None:
        self.stream.close()
        if self.container is not None:
            self.container.close()  # a foreign stream need not close what it wraps; closing twice is fine

    def abort(self) -> None:
        if self.container is not None:
            self.container.abort()


class _Unclosable:
    """What a foreign stream writes to when no container follows: items share the file, which is flushed and closed once
    all of them are written.
    """

    def __init__(self, raw: Writable) -> None:
        self.write = raw.write

    def flush(self) -> None:
        """As the class says."""

    close = flush


# -- for readers ------------------------------------------------------------------------------------


def access_with(registry: ExtensionRegistry | None, keys: KeyRing, **options: Any) -> Access:
    """An `Access` with the codecs, stream transforms and keys of a torch registry, too; `options` are those of
    `Access.of`.
    """
    made = Registry.of(registry, keys)
    return Access.of(made.keys, codecs=made.codecs, transform=made.undo, **options)


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

    def __init__(self, keys: KeysLike = None, allow: Iterable[str] | None = None) -> None:
        super().__init__()
        self.keys = KeyRing.of(keys)
        self.codecs = CodecRegistry(allow)
        self._built: dict[Descriptor, Codec] = {}  # torch asks for each item again, and unwrapping a key takes time

    @classmethod
    def of(cls, registry: ExtensionRegistry | None, keys: KeysLike) -> Registry:
        """A registry with `keys` that also knows what `registry` does; raises ParameterError if both have keys."""
        made = cls(keys)
        if isinstance(registry, Registry):
            if not len(made.keys):
                return registry
            if len(registry.keys):
                raise ParameterError("keys= was given, and the registry has keys, too; pass all of them in one place")
            made.codecs = registry.codecs
        if registry is not None:
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
