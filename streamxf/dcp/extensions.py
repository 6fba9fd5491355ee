"""A writer's list of extensions: foreign stream transforms, then the chain; and the streams that it opens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch.distributed.checkpoint._extension import StreamTransformExtension

from streamxf.buffers import Writable
from streamxf.chain import Chain
from streamxf.codec import Codec
from streamxf.codecs.encrypt import Encrypt
from streamxf.errors import ChainError, UnsupportedError
from streamxf.format.header import Identity
from streamxf.format.limits import DEFAULT_BLOCK_LOG2
from streamxf.registry import CodecRegistry
from streamxf.report import Meter
from streamxf.stream.encoder import ContainerEncoder
from streamxf.stream.writer import StreamWriter


@dataclass(frozen=True)
class Extensions:
    """What the data passes on save: foreign extensions as streams, then the codecs of the chain as blocks."""

    foreign: tuple[StreamTransformExtension, ...]
    chain: Chain

    @classmethod
    def of(cls, extensions: Iterable[Any] | str | Codec) -> Extensions:
        """Part a list of extensions, in the order in which data flows through them.

        Raises
        ------
        ChainError
            If the codecs break a rule of order, or a foreign extension follows a codec.
        UnsupportedError
            If something is not a stream transform.
        """
        if isinstance(extensions, str | Codec | StreamTransformExtension):
            extensions = Chain.parse(extensions) if isinstance(extensions, str) else (extensions,)
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

    def __bool__(self) -> bool:
        return bool(self.foreign) or len(self.chain) > 0

    def renew(self) -> Extensions:
        """The extensions for one save."""
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

    def descriptors(self) -> list[str]:
        """In the order in which a reader applies them: the reverse."""
        return [extension.get_descriptor() for extension in (*self.foreign, *self.chain)][::-1]

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
        """The chain's Encrypt codec, or None."""
        return self.chain.encryption

    @property
    def hashed(self) -> bool:
        """Whether containers carry a SHA-256 of each block, because the save is signed."""
        encryption = self.encryption
        return encryption is not None and encryption.hashed

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
        """Finish the item."""
        self.stream.close()
        if self.container is not None:
            self.container.close()  # a foreign stream need not close what it wraps; closing twice is fine

    def abort(self) -> None:
        """Give the item up."""
        if self.container is not None:
            self.container.abort()


class _Unclosable:
    """What a foreign stream writes to when no container follows: items share the file, so closing one must not close
    that.
    """

    def __init__(self, raw: Writable) -> None:
        self._raw = raw

    def write(self, data: Any, /) -> int | None:
        return self._raw.write(data)

    def flush(self) -> None:
        """The file is flushed once, when all of its items are written."""

    def close(self) -> None:
        """The file is closed once, when all of its items are written."""
