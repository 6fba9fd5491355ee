"""`Chain`: codecs in the order in which data flows through them on save, the rules of that order, and its text form;
and `StreamCoder`, a chain made ready for one stream.

On save a block passes the codecs front to back, on load back to front, inside one worker, so that it stays in cache.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Union, cast

from streamxf.buffers import Scratch, flat_view
from streamxf.cached import cached_property
from streamxf.codec import BUILTINS, BlockInfo, Codec, CodecRegistry, StreamInfo, WholeDecoder
from streamxf.descriptor import ENCRYPT, Descriptor
from streamxf.errors import (
    AuthenticationError,
    ChainError,
    CodecError,
    DescriptorError,
    ParameterError,
    StreamxfError,
    is_exhausted,
)
from streamxf.format.container import stage_limit
from streamxf.format.limits import MAX_CODECS
from streamxf.keys import KeyRing, KeysLike, SigningKey, TrustLike, VerifyKey
from streamxf.keys.ring import as_verify_key, several
from streamxf.report import Meter

if TYPE_CHECKING:
    from streamxf.codecs.encrypt import Encrypt


DEFAULT_CHAIN = "floatzip"
"""Where no chain is given; for bytes, too: most are files of floats, and what is not goes through zstd."""

_RAW = "raw"
_ANY = "*"  # the pattern of all items

Beneath = Callable[[], memoryview] | None

ChainLike = Union["Chain", str, Codec, Sequence[Codec]]
ChainsLike = Union[ChainLike, "Chains", Mapping[str, ChainLike]]
"""One chain for all items, or several by patterns of items' names, as `Chains` says."""


@dataclass(frozen=True)
class Chain:
    """A frozen tuple of at most 8 codecs, in the order in which data flows through them on save:
    ``[ZStandard(), Checksum(), Encrypt(key)]`` compresses, then checks, then encrypts. Raises ChainError, with the
    reason, if they break a rule of order.

    - `raw`: whether tensors are stored as their bare elements, and nothing has a container; then there are no codecs.
    """

    codecs: tuple[Codec, ...]
    raw: bool = False

    def __init__(self, codecs: Iterable[Codec] = (), *, raw: bool = False) -> None:
        if isinstance(codecs, str | Codec) or not isinstance(codecs, Iterable):
            raise ChainError("Chain takes a list of codecs; Chain.parse reads the text form, Chain.of takes either")
        object.__setattr__(self, "codecs", tuple(codecs))
        object.__setattr__(self, "raw", raw)
        if raw and self.codecs:
            raise ChainError("raw data passes no codec: raw is a chain of its own")
        if len(self.codecs) > MAX_CODECS:
            raise ChainError(f"a chain holds at most {MAX_CODECS} codecs, this one has {len(self.codecs)}")
        encrypted = False
        for codec in self.codecs:
            if not isinstance(codec, Codec):
                raise ChainError(f"a chain is made of streamxf codecs, and {codec!r} is not one")
            if encrypted and codec.role == "encryption":
                raise ChainError(
                    "a chain encrypts at most once: a second key adds no protection, and is one more to lose"
                )
            if encrypted and codec.role != "checksum":
                raise ChainError(
                    f"{codec.name} after encryption: encrypted data is noise, which neither compresses nor has "
                    "structure; put it before Encrypt. Only a checksum may follow"
                )
            encrypted = encrypted or codec.role == "encryption"

    @cached_property
    def implementations(self) -> dict[str, str]:
        """The implementations in use, by the codec's name, of codecs that have several."""
        return {codec.name: kind for codec in self.codecs if (kind := codec.implementation())}

    @classmethod
    def of(cls, chain: ChainLike, *, keys: KeysLike = None, codecs: CodecRegistry | None = None) -> Chain:
        """Make a chain from the value of a ``chain=`` argument: a Chain, codecs, one codec, or the text form.

        `keys` is used for ``encrypt`` in the text form only; it must then hold exactly one key.
        """
        if isinstance(chain, Chain):
            return chain
        if isinstance(chain, str):
            return cls.parse(chain, keys=keys, codecs=codecs)
        if isinstance(chain, Mapping | Chains):
            raise ChainError("chains by name are for the items of a checkpoint; here one chain is needed")
        return cls((chain,)) if isinstance(chain, Codec) else cls(chain)

    @classmethod
    def chosen(cls, chain: ChainLike | None, *, keys: KeysLike = None, codecs: CodecRegistry | None = None) -> Chain:
        """Make the chain of a writer that was given `chain` and `keys`: `DEFAULT_CHAIN` where there is none. Raises as
        `parse`; also ParameterError if there are keys, and the chain does not encrypt.
        """
        chosen = cls.of(DEFAULT_CHAIN if chain is None else chain, keys=keys, codecs=codecs)
        if len(KeyRing.of(keys)) and chosen.encryption is None:
            raise ParameterError("keys= was given, and the chain does not encrypt; add Encrypt(key) or 'encrypt'")
        return chosen

    @classmethod
    def parse(cls, text: str, *, keys: KeysLike = None, codecs: CodecRegistry | None = None) -> Chain:
        """Read the text form: ``zstd:level=3+checksum+encrypt``.

        Codecs are joined by ``+``. Each is a name, the ``streamxf.`` of built-in ones left out, then optionally ``:``
        and parameters joined by commas. The empty string is the empty chain; ``raw``, by itself, is one without codecs
        whose tensors are stored as their bare elements.

        Raises ChainError if the text cannot be read, names a parameter that the codec does not have, or has ``encrypt``
        and `keys` does not hold exactly one key; ParameterError if a value is out of range; UnknownCodecError.
        """
        registry, ring = codecs or CodecRegistry(), KeyRing.of(keys)
        words = [part.strip() for part in text.split("+")] if text.strip() else []
        return cls((_parse_codec(word, ring, registry) for word in words if word != _RAW), raw=_RAW in words)

    def __str__(self) -> str:
        texts = [_RAW] if self.raw else []
        for codec in self.codecs:
            name, descriptor = CodecRegistry.short_name(codec.name), codec.descriptor()
            parameters = ",".join(f"{key}={value}" for key, value in descriptor.parameters + descriptor.fragment)
            texts.append(f"{name}:{parameters}" if parameters else name)
        return "+".join(texts)

    def __iter__(self) -> Iterator[Codec]:
        return iter(self.codecs)

    def __len__(self) -> int:
        return len(self.codecs)

    def __bool__(self) -> bool:
        return len(self.codecs) > 0 or self.raw

    @cached_property
    def bound(self) -> tuple[str, ...]:
        """The codecs' descriptors without their fragments, as a container's header records them."""
        return tuple(descriptor.bound for descriptor in self.descriptors)

    @cached_property
    def descriptors(self) -> tuple[Descriptor, ...]:
        return tuple(codec.descriptor() for codec in self.codecs)

    @cached_property
    def whole_decoder(self) -> tuple[int, WholeDecoder | None]:
        """Where one step undoes the first codec and a checksum behind it, and what does, if anything."""
        checksum = self.codecs[1] if len(self) > 1 and self.codecs[1].role == "checksum" else None
        return int(checksum is not None), self.codecs[0].whole_decoder(checksum) if self.codecs else None

    @property
    def differs(self) -> bool:
        """Whether its blocks may be differences from others."""
        return bool(self.codecs) and self.codecs[0].name == "streamxf.floatzip"

    def renew(self) -> Chain:
        """The chain for one save: whatever is random for each save is drawn again."""
        return Chain((codec.renew() for codec in self.codecs), raw=self.raw)

    def sharing(self, encryption: Encrypt | None) -> Chain:
        """The same with this in the place of its own."""
        if encryption is None or encryption is self.encryption:
            return self
        return Chain(encryption if codec.name == ENCRYPT else codec for codec in self.codecs)

    @cached_property
    def encryption(self) -> Encrypt | None:
        return cast("Encrypt | None", next((codec for codec in self.codecs if codec.name == ENCRYPT), None))

    def ring(self, keys: KeysLike = None, trust: TrustLike = None, allow_unsigned: bool = False) -> KeyRing:
        """The keys that a job reads with: `keys`, by default the chain's that can read. Whose signatures count is up to
        `trust`, or to a ring that has some; by default it is the chain's signer.
        """
        if self.encryption is None:
            return KeyRing.of(keys, trust, allow_unsigned)
        own = [key for key in self.encryption.recipients if key.unwraps] or None
        ring = KeyRing.of(own if keys is None else keys)
        if ring.trust:
            return KeyRing.of(ring, trust, allow_unsigned)
        unsigned = allow_unsigned or ring.allow_unsigned
        trusted = () if unsigned and trust is None else self.trusted(trust)
        if not len(ring) or not (trusted or allow_unsigned):
            return ring  # which remembers what it has opened
        return KeyRing([*ring], trust=trusted or None, allow_unsigned=unsigned)

    def trusted(self, trust: TrustLike) -> tuple[VerifyKey, ...]:
        """Those in `trust`, or else the chain's signer."""
        if trust is not None:
            return several(trust, "trust", as_verify_key)
        signer = self.encryption.signer if self.encryption is not None else None
        return (signer.verify_key,) if isinstance(signer, SigningKey) else ()  # a pickle leaves it out

    def unseal(self, stream: StreamInfo, seal: bytes | None) -> Any:
        """The state that decrypts a stream, once the seal in its header has proved to be right; None if in clear.

        Raises AuthenticationError if the seal does not match the key, or either is missing.
        """
        state = self.encryption.start(stream) if self.encryption is not None else None
        expected = state.seal if state is not None else None
        if (expected is None) != (seal is None) or not hmac.compare_digest(expected or b"", seal or b""):
            raise AuthenticationError(
                "the container's seal does not match: its header was altered, or it was sealed under another data key"
            )
        return state


class Chains:
    """The chain of each item of a checkpoint, by its name: that of the last pattern that fits, in which ``*`` stands
    for any text. If one of them encrypts, all do, and for the same readers: then they share the first one's `Encrypt`.

    Raises ChainError if only some encrypt, or for others; ParameterError if `by_pattern` is no mapping of patterns.

    - `by_pattern`: the first is ``"*"``, whose chain is the default.
    """

    def __init__(self, by_pattern: Mapping[str, Chain]) -> None:
        encrypting = {chain.encryption for chain in by_pattern.values()}
        if len(encrypting) > 1:
            texts = "; ".join(f"{pattern}: {chain}" for pattern, chain in by_pattern.items())
            raise ChainError(f"if one chain encrypts, all do, for the same keys and by the same signer: {texts}")
        own = self.encryption = next(iter(encrypting), None)
        self.by_pattern = {pattern: chain.sharing(own) for pattern, chain in by_pattern.items()}
        others = [*self.by_pattern][:0:-1]  # the last first, without that for all
        self._patterns = [(each, re.compile(".*".join(map(re.escape, each.split("*"))), re.DOTALL)) for each in others]

    @classmethod
    def of(cls, chains: ChainsLike | None, make: Callable[[ChainLike | None], Chain]) -> Chains:
        """From the value of a ``chain=`` argument, each chain of which, or the default, `make` makes."""
        if isinstance(chains, Chains):
            return chains
        if not isinstance(chains, Mapping):
            return cls({_ANY: make(chains)})
        if not all(isinstance(pattern, str) and pattern for pattern in chains):
            raise ParameterError("chain= is a mapping from patterns of items' names, which are text, to chains")
        if _ANY in [*chains][1:]:
            raise ParameterError("of the patterns in chain=, '*' stands first: the last one that fits an item counts")
        return cls({pattern: make(chain) for pattern, chain in {_ANY: chains.get(_ANY), **chains}.items()})

    @classmethod
    def chosen(cls, chains: ChainsLike | None, *, keys: KeysLike = None) -> Chains:
        """Those of a writer, each as `Chain.chosen`."""
        ring = None if keys is None else KeyRing.of(keys)  # looked up once: one may ask for a passphrase
        made = cls.of(chains, lambda chain: Chain.chosen(chain, keys=ring))
        Chain.chosen(made.default, keys=ring)  # which may have been made without keys
        return made

    @staticmethod
    def by_text(texts: Sequence[str]) -> ChainsLike | None:
        """The value of ``chain=`` that texts stand for: CHAIN for all items, or NAME=CHAIN, where NAME is a pattern
        without colons. Raises ParameterError if one name is given twice.
        """
        found: dict[str, ChainLike] = {}
        for text in texts:
            name, equals, chain = text.partition("=")
            name, chain = (name.strip(), chain) if equals and ":" not in name else (_ANY, text)
            if name in found:
                raise ParameterError(f"there are two chains for {name}")
            found[name] = chain
        return (found[_ANY] if [*found] == [_ANY] else found) if found else None

    @property
    def default(self) -> Chain:
        return self.by_pattern[_ANY]

    def pattern_for(self, item: str) -> str:
        for pattern, fits in self._patterns:
            if fits.fullmatch(item):
                return pattern
        return _ANY

    def for_item(self, name: str) -> Chain:
        return self.by_pattern[self.pattern_for(name)]

    def __iter__(self) -> Iterator[Chain]:
        return iter(self.by_pattern.values())

    def renew(self) -> Chains:
        """As `Chain.renew`."""
        return Chains({pattern: chain.renew() for pattern, chain in self.by_pattern.items()})

    def __str__(self) -> str:
        if len(self.by_pattern) == 1:
            return str(self.default)
        return ", ".join(f"{pattern}={chain}" for pattern, chain in self.by_pattern.items())


def _parse_codec(text: str, keys: KeyRing, registry: CodecRegistry) -> Codec:
    name, colon, rest = (part.strip() for part in text.partition(":"))
    if not name or (colon and not rest):
        raise ChainError(f"chain text: {text!r} is not name or name:key=value,key=value")
    full = f"streamxf.{name}" if f"streamxf.{name}" in BUILTINS else name
    parameters: dict[str, str] = {}
    for pair in rest.split(",") if rest else ():
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key or key in parameters:
            raise ChainError(f"chain text: {pair!r} in {text!r} is not key=value, or is given twice")
        parameters[key] = value
    if "." not in full:
        shorts = ", ".join(map(CodecRegistry.short_name, BUILTINS))
        raise ChainError(
            f"chain text: there is no codec {name!r}; built in are {shorts}, and others have a dot in their name"
        )
    try:
        return registry.find(full).from_text(parameters, keys)
    except DescriptorError as error:  # which is about a checkpoint's descriptor everywhere else
        raise ChainError(f"chain text: {error.message}") from None


class StreamCoder:
    """A chain made ready for one stream: encodes and decodes its blocks, from any thread. `encryption` is the result of
    `Chain.unseal` for a stream that is read; `meter` counts the time of each codec.

    - `tagged`: whether a stored block is what `Encrypt` made of it, so that an authentic tag covers all of its bytes.
    """

    def __init__(self, chain: Chain, stream: StreamInfo, encryption: Any = None, *, meter: Meter | None = None) -> None:
        keyed = chain.encryption
        if keyed is not None and encryption is None:
            encryption = keyed.start(stream)
        self.stream = stream
        self._meter = meter
        self.stage_limit = stage_limit(stream.block_size)
        self._steps = [(codec, encryption if codec is keyed else codec.start(stream)) for codec in chain.codecs]
        self.seal: bytes | None = None if keyed is None else encryption.seal  # the header's, 32 bytes
        self.tagged = keyed is not None and chain.codecs[-1] is keyed
        self._chain = chain
        if meter is not None:
            meter.implementations.update(chain.implementations)

    def encode(
        self, block: memoryview, index: int, last: bool, scratch: Scratch, beneath: Beneath = None
    ) -> memoryview:
        """Pass one block through the chain, front to back; `beneath` as in `BlockInfo`. The result may lie in
        `scratch`, or be `block` itself.
        """
        busy = self._meter.cell.busy if self._meter is not None else None
        for step, (codec, state) in enumerate(self._steps):
            take = partial(scratch.take, step)
            lower = None if step else beneath
            info = BlockInfo(index, last, self.stage_limit, state, self.stream, take, scratch, lower)
            block = self._run(codec.encode, codec, block, info, busy)
        return block

    def decode(
        self,
        block: memoryview,
        index: int,
        last: bool,
        scratch: Scratch,
        out: memoryview | None = None,
        beneath: Beneath = None,
    ) -> memoryview:
        """Pass one stored block through the chain, back to front, into `out`, which is returned, and whose size the
        block must have. Without it the result may lie in `scratch`, and is at most a block long.
        """
        limit = self.stream.block_size if out is None else len(out)
        busy = self._meter.cell.busy if self._meter is not None else None
        for step in range(len(self._steps) - 1, -1, -1):
            if step == self._chain.whole_decoder[0] and out is not None and self._decode_whole(block, out, busy):
                return out
            codec, state = self._steps[step]
            final = step == 0
            take = partial(_take_out, out, scratch, step) if final and out is not None else partial(scratch.take, step)
            most = limit if final else self.stage_limit
            info = BlockInfo(index, last, most, state, self.stream, take, None, beneath if final else None)
            block = self._run(codec.decode, codec, block, info, busy)
        if len(block) > limit or (out is not None and len(block) != limit):
            raise CodecError(
                f"block decodes to {len(block)} bytes where {limit} belong", block=index, item=self.stream.item
            )
        if out is not None and block is not out:
            out[:] = block
        return block if out is None else out

    def _decode_whole(self, block: memoryview, out: memoryview, busy: dict[str, float] | None) -> bool:
        begin, decoder = perf_counter(), self._chain.whole_decoder[1]
        done = decoder is not None and decoder(block, out)
        if done and busy is not None:
            busy[self._steps[0][0].name] += perf_counter() - begin
        return done

    def _run(
        self, step: Any, codec: Codec, block: memoryview, info: BlockInfo, busy: dict[str, float] | None
    ) -> memoryview:
        begin = perf_counter()
        try:
            result = flat_view(step(block, info))
        except StreamxfError as error:
            error.locate(block=info.index, item=self.stream.item)
            raise
        except Exception as error:
            if is_exhausted(error):
                raise
            raise CodecError(
                f"codec {codec.name} could not {step.__name__} a block: {type(error).__name__}: {error}",
                block=info.index,
                item=self.stream.item,
            ) from error
        if busy is not None:
            busy[codec.name] += perf_counter() - begin
        if len(result) > info.limit:
            raise CodecError(
                f"codec {codec.name} made {len(result)} bytes of a block in {step.__name__}; at most {info.limit} "
                "are allowed",
                block=info.index,
                item=self.stream.item,
            )
        return result


def _take_out(out: memoryview, scratch: Scratch, step: int, size: int) -> memoryview:
    return out if size == len(out) else scratch.take(step, size)
