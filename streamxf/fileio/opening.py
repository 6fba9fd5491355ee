"""`ChainOpener`: from the descriptors that storage gives to a chain, importing nothing that is not vouched for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamxf.chain import Chain
from streamxf.codec import Codec
from streamxf.coder import StreamCoder
from streamxf.container.header import Header
from streamxf.descriptor import ENCRYPT, Descriptor
from streamxf.fileio.blocks import stream_info
from streamxf.keys import KeyRing
from streamxf.meter import Meter
from streamxf.registry import CodecRegistry, Provider


class ChainOpener:
    """Rebuilds one chain, once, for all streams that have it.

    The key is unwrapped first, and no other codec is imported before a header's seal has shown that the chain is
    authentic.

    Parameters
    ----------
    descriptors : sequence of Descriptor
        In save order.
    keys : KeyRing
    registry : CodecRegistry
    providers : iterable of Provider
        What the data says about the packages of its codecs, for errors.
    """

    def __init__(
        self,
        descriptors: Sequence[Descriptor],
        keys: KeyRing,
        registry: CodecRegistry,
        providers: Iterable[Provider] = (),
    ) -> None:
        self._descriptors = descriptors
        self._keys = keys
        self._registry = registry
        self._providers = tuple(providers)
        self._encryption: dict[Descriptor, Codec] = {}
        self._chain: Chain | None = None

    def coder(self, header: Header, meter: Meter | None = None) -> StreamCoder:
        """Make the chain ready for the stream of a header that was read.

        Raises
        ------
        AuthenticationError
            If the header's seal does not match.
        UnknownCodecError, KeyMissingError, WrongKeyError, DescriptorError, ChainError
            If the chain cannot be built.
        """
        info = stream_info(header)
        if self._chain is None:
            self._encryption = {item: self._build(item) for item in self._descriptors if item.name == ENCRYPT}
            StreamCoder.open(Chain(self._encryption.values()), info, header.seal)
            self._chain = Chain(self._encryption.get(item) or self._build(item) for item in self._descriptors)
        return StreamCoder.open(self._chain, info, header.seal, meter=meter)

    def _build(self, descriptor: Descriptor) -> Codec:
        return self._registry.build(descriptor, self._keys, self._providers)
