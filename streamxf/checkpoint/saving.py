"""`Save`: the settings and state of one process's part in a save: its chain, its destination, whether it fits there."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, ClassVar, Literal, Self
from weakref import finalize

from streamxf.buffers import Writable
from streamxf.cached import cached_property
from streamxf.chain import DEFAULT_CHAIN, Chain, ChainLike, Chains, ChainsLike
from streamxf.checkpoint.sources import Content
from streamxf.codec import BUILTINS, CodecRegistry
from streamxf.errors import KeyMissingError, NoSpaceError, ParameterError, add_note, escaped
from streamxf.format.header import Identity
from streamxf.format.limits import DEFAULT_BLOCK_LOG2, WRITER_ID_BYTES
from streamxf.format.names import data_name, is_metadata_name
from streamxf.format.sections import pack_keys
from streamxf.keys import KeysLike, SignerLike, SigningKey, as_signing_key
from streamxf.keys.envelope import Vouchers
from streamxf.progress import Progress
from streamxf.report import Meter
from streamxf.storage.abilities import Mount
from streamxf.storage.files import TO_NOTHING
from streamxf.storage.opening import Location, open_storage
from streamxf.storage.storage import Storage
from streamxf.stream.encoder import ContainerEncoder, StreamWriter, block_log2_of
from streamxf.wording import MAKE_ROOM, size_text, some

if TYPE_CHECKING:
    from streamxf.codecs.encrypt import Encrypt

_ENCRYPT = "encrypt"
_log = logging.getLogger(__name__)

Stock = bool | Literal["auto"]
"""Whether torch's own readers are to read a checkpoint; ``"auto"``: if it has at most `STOCK_CHUNKS` chunks."""

STOCK_CHUNKS = 65_536  # whose pickle has 5 MB, and takes torch a second to read

Entry = tuple[Identity, Callable[[], Content]]
"""An item, or a shard of one, without its writer's id; and what gives its bytes when it is its turn."""

_REASONS = 3  # in a warning

_TRIES, _PAUSE = 40, 0.025  # the latter in seconds

_ADVICE: dict[int | None, str] = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT), f"the disk of {{}} is too full for this save. {MAKE_ROOM}, or save elsewhere"
    ),
    errno.EIO: "a disk or a server failed: that of {}, or of what was to be saved; the system's log may say more",
    errno.EFBIG: "no file of {} may be that large: raise the limit (`ulimit -f`), or save into more files, "
    "as `FileSystemWriter` does with a larger thread_count",
    errno.EROFS: "its file system is mounted read-only: have it mounted for writing, or save elsewhere",
}


@dataclass(frozen=True)
class Extensions:
    """What the data of a save passes: torch's stream transforms, then the codecs of an item's chain, block by block.

    - `foreign`: torch's stream extensions, which have get_descriptor and transform_to.
    - `own_signer`: who signs, where nothing is encrypted.
    """

    foreign: tuple[Any, ...]
    chains: Chains
    own_signer: SigningKey | None = None

    def signed_by(self, signer: SignerLike | None) -> Extensions:
        """The same for a save that `signer` signs; raises ParameterError if another one does."""
        if signer is None:
            return self
        if (encryption := self.encryption) is None:
            return replace(self, own_signer=as_signing_key(signer))
        if encryption.signer is not None:
            raise ParameterError("signer= was given, and Encrypt in the chain has one: leave one of them out")
        made = type(encryption)(encryption.recipients, signer=signer)
        by_pattern = self.chains.by_pattern.items()
        chains = {name: Chain(made if codec is encryption else codec for codec in chain) for name, chain in by_pattern}
        return replace(self, chains=Chains(chains))

    def renew(self) -> Extensions:
        return replace(self, chains=self.chains.renew())

    def providers(self) -> list[str]:
        """The third-party packages that the codecs come from, as ``StorageMeta.modules`` records them."""
        others = [codec for chain in self.chains for codec in chain if codec.name not in BUILTINS]
        found = map(CodecRegistry().provider, others) if others else ()
        return [str(provider) for provider in found if provider is not None]

    def summary(self) -> str:
        """The extensions in save order, without what differs from process to process, and the ids of the keys."""
        transforms = [extension.get_descriptor() for extension in self.foreign]
        by_pattern = self.chains.by_pattern.items()
        texts = {
            name: " > ".join([*transforms, *chain.bound] or [str(chain) or "no extension"])
            for name, chain in by_pattern
        }
        text = texts["*"] if len(texts) == 1 else ", ".join(f"{name}: {text}" for name, text in texts.items())
        if (encryption := self.encryption) is not None:
            text += f" under key {', '.join(encryption.key_ids)}"
        return text if self.signer is None else f"{text}, signed by {self.signer.id}"

    def recorded(self, chain: Chain) -> tuple[str, ...]:
        """The descriptors of a `Place`, in save order."""
        return (*self._transforms, *map(str, chain.descriptors))

    @cached_property
    def recorded_for(self) -> Callable[[str], tuple[str, ...]]:
        """The same for an item's name."""
        known = {name: self.recorded(chain) for name, chain in self.chains.by_pattern.items()}
        return lambda item: known[self.chains.pattern_for(item)]

    @cached_property
    def _transforms(self) -> tuple[str, ...]:
        return tuple(f"!{extension.get_descriptor()}" for extension in self.foreign)

    @property
    def encryption(self) -> Encrypt | None:
        return self.chains.encryption

    @property
    def readers(self) -> frozenset[tuple[str, str]]:
        """The kinds and ids of the keys that open what is saved."""
        encryption = self.encryption
        return frozenset((key.kind, key.id) for key in encryption.recipients) if encryption is not None else frozenset()

    @property
    def may_shrink(self) -> bool:
        """Whether data may take fewer bytes than it has, as it does not by checksums and encryption."""
        roles = {codec.role for chain in self.chains for codec in chain}
        return bool(self.foreign) or not roles <= {"checksum", "encryption"}

    def hold_value(self, item: str) -> bool:
        """Whether an item is stored as a value, if it is plain data: not where any torch shall be able to read it."""
        chain = self.chains.for_item(item)
        return bool(len(chain) or chain.raw) and not self.foreign

    @property
    def signer(self) -> Any:
        """Who signs the save, so that its index has the SHA-256 of all that is stored; None for nobody."""
        return self.own_signer if self.encryption is None else self.encryption.signer

    def key_lines(self, digest: bytes) -> bytes:
        """The keys of metadata with the digest D, as they are stored; raises as `Vouchers.make`."""
        if self.encryption is not None:
            return pack_keys(self.encryption.wrapped, self.encryption.vouch(digest))
        return b"" if self.signer is None else pack_keys("", str(Vouchers(b"").with_signature(digest, self.signer)))

    def encoder(self, identity: Identity, chain: Chain, **how: Any) -> ContainerEncoder:
        """The container of one item; `how` as in `ContainerEncoder`."""
        facts: Any = {"transforms": self._transforms, "identity": identity, "signed": self.signer is not None}
        return ContainerEncoder(chain, **facts, **how)

    def open(self, raw: Writable, identity: Identity, chain: Chain, **how: Any) -> tuple[Any, StreamWriter | None]:
        """Open an item's streams: for its bytes, and the container by which blocks leave; `how` as in `encoder`."""
        container, nothing = None, lambda: None
        if len(chain):
            container = StreamWriter(raw, self.encoder(identity, chain, **how), meter=how.get("meter"))
        # without a container items share the file, which is closed once, at the end
        stream: Any = container or SimpleNamespace(write=raw.write, flush=nothing, close=nothing)
        for extension in reversed(self.foreign):
            stream = extension.transform_to(stream)
        return stream, container


@dataclass
class Save:
    """One save by one process.

    The writer id is minted here, for each save, rather than taken from DCP: every rank draws its own ``save_id``, it
    survives into the next save, and cached plans bring back the file names of the first.

    - `storage`: the checkpoint's folder, held open from `enter` to `leave`.
    - `extensions`: renewed for this save.
    - `sync`: whether each file must be on the disk before the save goes on.
    - `overwrite`: whether a checkpoint that is there may be replaced, even one that is published later.
    - `stock`: whether torch's own readers get a pickle; once it is published, a truth value.
    - `place`: where the checkpoint's folder is, once it is there; None if it is not local.
    - `group`, `ranks`: as in `Index`.
    - `numbers`: of its containers, which any thread may draw.
    - `meter`: what all threads of the save count in.
    - `sizes`: about how many bytes its files will have, where that is known.
    - `failures`: of its files; after the first the others stop.
    - `pickled`: whether what was published has a pickle for torch's own readers.
    - `increment`: an `Increment`, where what is saved is compared with an earlier save, or taken note of.
    """

    BLOCK_SIZE: ClassVar[int] = 1 << DEFAULT_BLOCK_LOG2  # bytes, by default
    storage: Storage
    extensions: Extensions
    block_log2: int
    sync: bool
    overwrite: bool
    stock: Stock = "auto"
    writer_id: bytes = field(default_factory=lambda: os.urandom(WRITER_ID_BYTES))
    place: Mount | None = None
    progress: Progress | None = None
    group: str | None = None
    ranks: int | None = None

    def __post_init__(self) -> None:
        check_stock(self.stock)
        self.modules = tuple(self.extensions.providers())
        self.numbers = count()
        self.meter = Meter()
        self.meter.cell.patterns.update(dict.fromkeys(self.extensions.chains.by_pattern, 0))
        self.sizes: dict[str, int] = {}
        self._needs: dict[str, tuple[tuple[str, ...], str]] = {}
        self.failures: list[BaseException] = []
        self.increment: Any = None
        self.pickled = False
        self._locking = threading.Lock()
        self._locked = False
        self._let_go: Callable[[], object] | None = None

    @classmethod
    def to(
        cls,
        path: Location,
        chain: ChainsLike | None,
        recipients: KeysLike = None,
        signer: SignerLike | None = None,
        overwrite: bool = False,
        block_size: int = BLOCK_SIZE,
        storage_options: Mapping[str, Any] | None = None,
        *,
        stock: Stock = "auto",
        was_encrypted: bool = False,
        cure: str = "name another target, or replace it (overwrite)",
    ) -> Self:
        """A save of the arguments of public functions, of which `renew` makes those that write. Raises what is wrong
        with them, and FileExistsError, with the advice `cure`, if there is a checkpoint that may not be replaced.
        """
        made = cls.extensions_of(chain, recipients, signer, was_encrypted)
        storage = open_storage(path, storage_options)
        storage.check_fresh()
        save = cls(storage, made, block_log2_of(block_size), True, overwrite, stock)
        if storage.near and os.path.lexists(storage.path) and not os.path.isdir(storage.path):
            text = "this is a file, and a checkpoint is a folder: name another target"
            raise NotADirectoryError(errno.ENOTDIR, text if os.path.exists(storage.path) else TO_NOTHING, storage.path)
        if any(map(is_metadata_name, storage.names())):
            if not overwrite:
                raise FileExistsError(errno.EEXIST, f"there is a checkpoint already; {cure}", storage.label())
            storage.check_may_replace(4)
        return save

    @staticmethod
    def extensions_of(
        chain: ChainsLike | None, recipients: KeysLike, signer: SignerLike | None, was_encrypted: bool
    ) -> Extensions:
        """What to write with: chains, by default that of writers, with `Encrypt` for keys in them; and who signs."""
        from streamxf.codecs.encrypt import Encrypt  # which saves without keys do not need

        encrypt = cache(partial(Encrypt, recipients, signer=signer)) if recipients is not None else None
        made = Extensions((), Chains.of(chain, lambda each: _chain_of(each, encrypt, was_encrypted)))
        return made if encrypt is not None else made.signed_by(signer)

    def renew(self) -> Self:
        """Another save to the same place, with an id and data key of its own."""
        return replace(self, extensions=self.extensions.renew(), writer_id=os.urandom(WRITER_ID_BYTES))

    def check_space(self, planned: int, exact: Any = None, shared: tuple[int, int, int] = (0, 0, 0)) -> None:
        """Raise NoSpaceError if tensors of `planned` bytes surely cannot fit, in a chain that cannot shrink them.

        - `exact`: gives how many of these surely take their bytes, if not all; asked only where it matters.
        - `shared`: the bytes that several ranks plan for one file system, what was free there before, and their number.
        """
        volume, (total, free, ranks) = self.storage.volume(), shared
        if volume is None or self.extensions.may_shrink:
            return
        makes_less = not volume.plain and self.extensions.encryption is None
        if makes_less or (planned <= volume.free and total <= free):
            return
        size = planned if exact is None else exact()
        together = total > free and size == planned
        size, free = (total, free) if together else (size, volume.free)
        if size > free:
            alike = size_text(size) == size_text(free)
            needed, left = (f"{each:,} bytes" if alike else size_text(each) for each in (size, free))
            raise NoSpaceError(
                f"the disk is too full for this save: at least {needed} are to be written to it"
                f"{f' by {ranks} ranks together' if together else ''}, and {left} are free. A checkpoint that is there "
                f"stays until the new one is published, so both need space. Nothing was written. {MAKE_ROOM}, "
                "or save elsewhere",
                file=self.storage.label(),
            )

    def enter(self, *, links: bool = True) -> Storage:
        """Hold a local folder open, whatever is put in its place; AbortedError for a link that is not followed."""
        self.storage = self.storage.hold(links=links)
        return self.storage

    @contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        """`Storage.create` of a data file; the first is locked until `leave`: tools leave alone what lies beside it."""
        with self._locking:
            if not self._locked:
                self._make_locked(path)
        with self.storage.create(path) as raw:
            if path in self.sizes and hasattr(raw, "expect"):
                raw.expect(self.sizes[path])
            yield raw

    @contextmanager
    def beside(self, path: str) -> Iterator[None]:
        """Lock an empty data file in place of the first, until `leave` at the end: for files that others write."""
        self._make_locked(path)
        try:
            yield
        finally:
            if self._let_go is not None:
                self.storage.remove([path])
            self.leave()

    def _make_locked(self, path: str) -> None:
        self._locked = True
        for _ in range(_TRIES):
            with suppress(BlockingIOError):
                lock = self.storage.lock_file(path, make=True)
                self._let_go = None if lock is None else finalize(self, lock.close)
                return
            time.sleep(_PAUSE)  # a tool looks at it just now

    def unlock(self) -> None:
        """Let go of the lock, where another process may have published."""
        self._locked, let_go, self._let_go = False, self._let_go, None
        if let_go is not None:
            let_go()  # or it would drop an interrupt that comes while this object goes

    def leave(self, *, published: bool = True) -> None:
        """Let go of the folder, and of the lock, unless others have yet to publish: it then goes with the next save."""
        if published:
            self.unlock()
        self.storage = self.storage.let_go()

    def file_name(self, rank: int, number: int) -> str:
        """A name that no other save or process uses."""
        return data_name(rank, number, self.writer_id)

    def discard(self, files: Iterable[str], error: BaseException) -> bool:
        """Remove files of a save that `error` ended; its notes say what is left, and what to do. Whether all were."""
        if type(error) is OSError and (advice := _ADVICE.get(error.errno)):  # NoSpaceError says so itself
            add_note(error, escaped(advice.format(self.storage.label())))
        if self.increment is not None:
            self.increment.close()
            self.increment.unpin()
            files = *files, *self.increment.linked
        left = self.storage.remove(files)
        for name, reason in left.items() if getattr(error, "errno", None) != errno.EROFS else ():
            text = f"{name} of the failed save could not be removed: {type(reason).__name__}: {reason}"
            add_note(error, escaped(text))
        return not left

    def decide_stock(self, chunks: int) -> bool:
        """Whether torch's own readers get a pickle for so many chunks and objects: always if they need no codec."""
        readable = not any(self.extensions.chains)
        if self.stock == "auto" or readable:
            self.stock = chunks <= STOCK_CHUNKS or readable
            if not self.stock:
                text = "%s: without a pickle for torch's own readers, since it has %d chunks; `streamxf stock` adds it"
                _log.warning(text, self.storage.label(), chunks)
        return self.stock is True

    def note_needs(self, item: str, data: memoryview) -> None:
        """Take note of what an object needs of its reader; `data` is what ``torch.save`` wrote of it."""
        from streamxf.torchsave.check import quick_needs  # which saves of tensors alone do not need

        names, reason = quick_needs(data)
        if names or reason:
            self._needs[item] = names, reason

    def refused_objects(self) -> tuple[frozenset[str], str]:
        """What readers refuse by default of the saved objects: the names they need, and a text that says so, or ""."""
        needs = sorted(self._needs.items())
        names = sorted({name for _, (names, _) in needs for name in names})
        reasons = {item: reason for item, (_, reason) in needs if reason}
        if not needs:
            return frozenset(), ""
        text = f"readers will refuse objects of this checkpoint by default: {some([item for item, _ in needs])}."
        if names:
            text += f" They need {some(names, most=20)}; pass the reader safe_globals=[{some(names, most=20)}]."
        for item, reason in list(reasons.items())[:_REASONS]:
            text += f" {some([item])} does not load then either: {reason}; store a list, a dict or a string instead."
        return frozenset([*names, *reasons.values()]), text


def _chain_of(chain: ChainLike | None, encrypt: Callable[[], Encrypt] | None, was_encrypted: bool) -> Chain:
    if chain is None:
        if encrypt is not None:
            return Chain([*Chain.parse(DEFAULT_CHAIN), encrypt()])
        if was_encrypted:
            raise ParameterError(
                "the source is encrypted, and the default chain does not encrypt: give the keys of those who may "
                "read the copy (recipients), or a chain without encrypt to write it unencrypted"
            )
        return Chain.parse(DEFAULT_CHAIN)
    if not isinstance(chain, str):
        if encrypt is not None:
            raise ParameterError("recipients= goes with a chain in text form; put Encrypt(...) into this one")
        return Chain.of(chain)
    words = [word.strip() for word in chain.split("+")] if chain.strip() else []
    if _ENCRYPT in words and encrypt is None:
        raise KeyMissingError("the chain encrypts: give the keys of those who may read (recipients)")
    if encrypt is not None and _ENCRYPT not in words:
        raise ParameterError("recipients were given, and the chain does not encrypt: add '+encrypt' to it")
    own = [Chain([encrypt()]) if encrypt and word == _ENCRYPT else Chain.parse(word) for word in words]
    return Chain((codec for each in own for codec in each), raw=any(each.raw for each in own))


def check_stock(stock: Stock) -> Stock:
    if not isinstance(stock, bool) and stock != "auto":
        raise ParameterError(f"stock={stock!r:.40}: it is True, False or 'auto'")
    return stock
