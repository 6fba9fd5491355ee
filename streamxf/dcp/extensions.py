"""What streamxf is to torch's own writers and readers: stream extensions, and the registry that finds them.

Torch wraps the output stream once for each extension. When a codec is asked to wrap a stream that a codec has just
made, it joins that stream instead, and the container starts with the first write. On load it is the same: each codec
joins the stream of the one before it, and the container is opened with the first read, whose header says in which order
the codecs belong. Where it holds the elements of a tensor, torch's reader gets torch.save's frame around them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, ClassVar, Self, cast

import torch

from streamxf.cached import cached_property
from streamxf.chain import Chain, StreamCoder
from streamxf.checkpoint.access import known_transform
from streamxf.codec import Codec, CodecRegistry
from streamxf.codecs.encrypt import Encrypt
from streamxf.descriptor import RAW, VALUE, Descriptor
from streamxf.errors import AbortedError, DescriptorError, IdentityError, PolicyError, UnsupportedError, shorten
from streamxf.format.bare import raw_descriptor
from streamxf.format.header import Header, Kind
from streamxf.format.items import ITEMSIZES, elements_size
from streamxf.format.limits import MAX_CODECS, MAX_NDIM, MAX_VALUE, MAX_VALUES
from streamxf.format.values import descriptor_of, parse_value
from streamxf.keys import KeyRing, KeysLike
from streamxf.storage.reading import FileSlice, Span
from streamxf.stream.container import BlockReader, read_header, stream_info
from streamxf.stream.encoder import ContainerEncoder, StreamWriter
from streamxf.stream.reader import BareBlocks, Blocks, StreamReader
from streamxf.torch_private import ExtensionRegistry, StreamTransformExtension, extensions_of_the_asking_writer
from streamxf.torchsave.writing import frame_of


class Registry(ExtensionRegistry):
    """A torch ``ExtensionRegistry`` with streamxf's codecs, installed third-party ones, and torch's own extensions.

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
        self._streams: dict[bytes, bytes] = {}  # that of the last container of values, by its H

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
        """Add a codec class, or another kind of torch's extensions; DuplicateCodecError if a codec has that name."""
        if issubclass(cls, Codec):
            self.codecs.register(cls)
        else:
            super().register(cls)

    def from_descriptor_list(self, descriptors: Sequence[str]) -> Sequence[Any]:
        """Rebuild the extensions of one item, in the order in which a reader applies them.

        Raises UnknownCodecError, CodecNotAllowedError, DescriptorError, KeyMissingError or WrongKeyError if one cannot
        be rebuilt, PolicyError if signers are trusted and there are no keys, and UnsupportedError if a foreign
        extension stands between or behind the codecs of the chain, or does not transform a stream.
        """
        if self.keys.trust and not len(self.keys):
            raise PolicyError(
                "signers are trusted, and torch's own readers do not read what they signed: pass trust= to "
                "streamxf.FileSystemReader"
            )
        last = [value] if (value := StoredValue.of(descriptors, self._streams)) is not None else []
        descriptors = descriptors[: len(descriptors) - len(last)]
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
        return codecs + self._foreign(foreign) + last

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


# -- codecs, as torch asks them ------------------------------------------------------------------------------------


def registry_name(cls: type[Codec]) -> str:
    return cls.name


def from_descriptor(cls: type[Codec], version: str) -> Codec:
    return cls.rebuild(Descriptor.parse(f"{cls.name}/{version}"))


def get_descriptor(codec: Codec) -> str:
    return f"{codec.descriptor()}{f'#{codec.wrapped}' if isinstance(codec, Encrypt) else ''}"


def transform_to(codec: Codec, output: IO[bytes]) -> IO[bytes]:
    """Wrap `output` with `codec`, or let `codec` join the container that `output` already is. Raises UnsupportedError
    if the writer's list also holds a foreign extension, which cannot be told from the data there, and ChainError if it
    breaks a rule of order.
    """
    # torch's writer; its versions ask the extensions of its list in one order or the other
    chain = _chain_of(extensions_of_the_asking_writer(frames=2))
    if not isinstance(output, JoinedWriter):
        return cast("IO[bytes]", JoinedWriter(output, codec, chain))
    output.join(codec)
    return cast("IO[bytes]", output)


def transform_from(codec: Codec, input: IO[bytes]) -> IO[bytes]:
    """Wrap `input` with `codec`, or let `codec` join the stream that `input` already is."""
    if not isinstance(input, JoinedReader):
        return cast("IO[bytes]", JoinedReader(input, codec))
    input.join(codec)
    return cast("IO[bytes]", input)


class _Joined:
    """A container whose codecs are still coming, until the first byte is written or read."""

    def __init__(self, raw: IO[bytes], codec: Codec) -> None:
        super().__init__()
        self._raw = raw
        self._codecs = [codec]
        self._stream: Any = None

    def join(self, codec: Codec) -> None:
        if self._stream is not None:
            raise AbortedError("a codec cannot join a stream that was used already")
        self._codecs.append(codec)


class JoinedWriter(_Joined, io.RawIOBase):
    """What torch's writer writes to."""

    def __init__(self, raw: IO[bytes], codec: Codec, chain: Chain | None) -> None:
        super().__init__(raw, codec)
        self._chain = chain

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        if self._stream is None:
            chain = self._chain
            if chain is None or {*map(id, chain)} != {*map(id, self._codecs)}:  # somebody else asked the codecs
                chain = Chain(self._codecs[::-1])
            self._stream = StreamWriter(self._raw, ContainerEncoder(chain))
        return self._stream.write(data)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Finish the container and close torch's stream. Raises UnsupportedError if torch wrote past the extensions."""
        if self.closed:
            return
        if self._stream is None:
            raise UnsupportedError(
                "torch wrote nothing to the extensions' stream: with SerializationFormat.SAFETENSORS it writes the "
                "tensors past them, which makes a corrupt file. Use SerializationFormat.TORCH_SAVE"
            )
        self._stream.close()
        super().close()
        self._raw.close()

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.close()
        elif self._stream is not None:
            self._stream.abort()

    def __del__(self) -> None:
        """io.IOBase would close, which means finish; the inner stream aborts by itself."""


class JoinedReader(_Joined):
    """What torch's reader reads from: a `StreamReader`, opened when it asks for anything of one."""

    @cached_property
    def header(self) -> Header:
        return read_header(FileSlice(self._raw))

    def __getattr__(self, name: str) -> Any:
        if self._stream is None:
            chain, info = Chain(_in_stored_order(self.header, self._codecs)), stream_info(self.header)
            coder = StreamCoder(chain, info, chain.unseal(info, self.header.seal))
            blocks = BlockReader(FileSlice(self._raw), self.header, coder)
            blocks.decode_ends()
            self._stream = StreamReader(framed(self.header, blocks))
        return getattr(self._stream, name)


def framed(header: Header, blocks: Blocks) -> Blocks:
    """What torch's reader is to get of a container: torch.save's frame around a tensor's elements, or the stream."""
    identity = header.identity
    if identity is None or identity.kind is not Kind.TENSOR:
        return blocks
    return _Framed(blocks, *frame_of(identity.dtype, identity.shape))


def is_raw(descriptors: Sequence[str]) -> bool:
    """Whether these are the descriptors of a raw tensor."""
    return len(descriptors) == 1 and str(descriptors[0]).startswith(f"{RAW}/")


class _Stored(StreamTransformExtension):
    """Makes what torch's reader expects of an item that is not stored so; streamxf's own writers store it."""

    name: ClassVar[str]

    def __init__(self, text: str) -> None:
        self._text = text
        self._facts = dict(Descriptor.parse(text).parameters)

    def _check(self, known: bool, what: str) -> None:
        if not known:
            raise DescriptorError(f"{shorten(self._text)!r} is not the descriptor of {what} that this version reads")

    @classmethod
    def registry_name(cls) -> str:
        """As torch's registry has it."""
        return cls.name

    @classmethod
    def from_descriptor(cls, version: str) -> Self:
        """From what follows the name."""
        return cls(f"{cls.name}/{version}")

    def get_descriptor(self) -> str:
        """As it was given."""
        return self._text

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        """Raises UnsupportedError."""
        raise UnsupportedError("streamxf's own writers store raw tensors, given chain='raw', and values")


class RawTensor(_Stored):
    """A raw tensor; DescriptorError if its descriptor lacks dtype and shape."""

    name = RAW

    def __init__(self, text: str) -> None:
        super().__init__(text)
        numbers = self._facts["shape"].split(".") if "shape" in self._facts else []
        self._dtype = self._facts.get("dtype", "")
        known = self._dtype in ITEMSIZES and len(numbers) <= MAX_NDIM and all(map(str.isdecimal, numbers))
        self._check(known and text == raw_descriptor(self._dtype, numbers), "a raw tensor")
        self._shape = tuple(map(int, numbers))

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:
        """torch.save's frame around the elements."""
        blocks = BareBlocks(FileSlice(input))
        if blocks.size != elements_size(self._dtype, self._shape):
            raise IdentityError("the raw tensor has other bytes than its elements")
        return cast("IO[bytes]", StreamReader(_Framed(blocks, *frame_of(self._dtype, self._shape))))


class StoredValue(_Stored):
    """A value; DescriptorError if its descriptor says of another place than one can have.

    - `span`: where it begins and ends in its stream; None if it is all of that.
    - `streams`: that of the container that was read last, by its H.
    """

    name = VALUE

    def __init__(self, text: str, streams: dict[bytes, bytes] | None = None) -> None:
        super().__init__(text)
        self._streams = {} if streams is None else streams
        numbers = [int(number) for number in self._facts.values() if number.isdecimal()]
        self.span = (numbers[0], numbers[1]) if len(numbers) == 2 else None
        self._begin, self._end = self.span or (0, MAX_VALUE + 1)
        known = self.span is None or self._begin < self._end <= min(self._begin + MAX_VALUE, MAX_VALUES)
        self._check(known and text == descriptor_of(self.span), "a value")

    @classmethod
    def of(cls, descriptors: Sequence[str], streams: dict[bytes, bytes] | None = None) -> StoredValue | None:
        """That of an item with these descriptors, if it is a value."""
        text = str(descriptors[-1]) if len(descriptors) else ""
        return cls(text, streams) if text.startswith(f"{VALUE}/") else None

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:
        """What ``torch.save`` writes for it."""
        digest = input.header.digest if isinstance(input, JoinedReader) else b""
        if digest not in self._streams or not digest:
            self._streams.clear()
            self._streams[digest] = input.read(MAX_VALUES + 1)
        made = io.BytesIO()
        torch.save(parse_value(self._streams[digest][self._begin : self._end])[0], made)
        made.seek(0)
        return made


class _Framed(Blocks):
    """A tensor's elements with something before and after them, in the blocks of its container, and one more each."""

    def __init__(self, blocks: Blocks, prefix: bytes, suffix: bytes) -> None:
        super().__init__(len(prefix) + blocks.size + len(suffix), blocks.block_size)
        self._blocks = blocks
        self._prefix = prefix
        self._suffix = suffix

    def expect(self, *runs: Span) -> None:
        self._blocks.expect(*((first, min(stop, self._blocks.count)) for first, stop in runs))

    def decoder(self, index: int) -> Callable[[memoryview], None]:
        start = index * self.block_size - len(self._prefix)
        parts = StreamReader(self._blocks)

        def decode(out: memoryview) -> None:
            at = 0
            if start < 0:
                at = min(-start, len(out))
                out[:at] = self._prefix[start + len(self._prefix) :][:at]
            at += parts.readinto_at(max(0, start), out[at:])
            if at < len(out):
                begin = start + at - self._blocks.size
                out[at:] = self._suffix[begin : begin + len(out) - at]

        return decode


def _in_stored_order(header: Header, codecs: list[Codec]) -> list[Codec]:
    """Put `codecs` into the order of the header's chain; stream transforms before them are applied by torch itself."""
    rest = list(codecs)
    ordered: list[Codec] = []
    for text in header.block_chain:
        codec = next((codec for codec in rest if codec.descriptor().bound == text), None)
        if codec is None:
            break
        rest.remove(codec)
        ordered.append(codec)
    else:
        if not rest:
            return ordered
    given = " > ".join(codec.descriptor().bound for codec in reversed(codecs))
    raise IdentityError(
        f"the stored chain is {' > '.join(header.chain)}, the metadata says {given}: one of them was altered"
    )


def _chain_of(extensions: Any) -> Chain | None:
    """The chain of a writer's list, checked before anything is written; None if there is no list."""
    if extensions is None:
        return None
    foreign = [type(extension).__name__ for extension in extensions if not isinstance(extension, Codec)]
    if foreign:
        raise UnsupportedError(
            f"{', '.join(foreign)} stands beside streamxf codecs in torch's own writer, which would save it and "
            "could not load it: use streamxf.FileSystemWriter, where a foreign extension may stand before the first "
            "codec"
        )
    return Chain(extensions)
