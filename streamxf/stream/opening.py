"""`ChainOpener`: from stored descriptors to a chain, importing nothing before a seal matched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from streamxf.chain import Chain
from streamxf.codec import Codec
from streamxf.codecs.encrypt import Encrypt
from streamxf.coder import StreamCoder
from streamxf.descriptor import ENCRYPT, Descriptor
from streamxf.format.header import Header
from streamxf.keys.envelope import DataKey
from streamxf.meter import Meter
from streamxf.registry import CodecRegistry, Provider
from streamxf.stream.container import stream_info


class ChainOpener:
    """Rebuilds one chain, once, for all streams that have it.

    No codec but `Encrypt` is imported before a header's seal has shown that the chain is authentic.

    - `descriptors`: in save order.
    - `data_key`: returns the data key, if the chain encrypts; called once.
    - `providers`: what the data says about the packages of its codecs, for errors.
    """

    def __init__(
        self,
        descriptors: Sequence[Descriptor],
        registry: CodecRegistry,
        data_key: Callable[[], DataKey] | None = None,
        providers: Iterable[Provider] = (),
    ) -> None:
        self._descriptors = descriptors
        self._registry = registry
        self._data_key = data_key
        self._providers = tuple(providers)
        self._chain: Chain | None = None

    def coder(self, header: Header, meter: Meter | None = None) -> StreamCoder:
        """Make the chain ready for the stream of a header that was read. Raises AuthenticationError if the header's
        seal does not match; UnknownCodecError, KeyMissingError, WrongKeyError, DescriptorError, ChainError if the chain
        cannot be built.
        """
        info = stream_info(header)
        if self._chain is None:
            key = self._data_key() if self._data_key is not None else None
            StreamCoder.open(Chain([Encrypt.reading(key)] if key is not None else []), info, header.seal)
            self._chain = Chain(self._build(item, key) for item in self._descriptors)
        return StreamCoder.open(self._chain, info, header.seal, meter=meter)

    def _build(self, item: Descriptor, key: DataKey | None) -> Codec:
        if item.name != ENCRYPT:
            return self._registry.build(item, providers=self._providers)
        return self._registry.build(replace(item, fragment=()), key)  # what is wrapped there was opened already
