"""The requirement "With keys given, published is the default; bound and encrypted relax it by name": each of its parts,
with each reader.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._extension import ZStandard as TorchZStandard

import streamxf
from streamxf import Checksum, Encrypt, PrivateKey, SigningKey, ZStandard
from streamxf.errors import MetadataError, ParameterError, PolicyError

from .helpers import KEY, assert_same, error_of, full_chain, load_with, refused, rewrite_pickle, sections_of

STATE = {"w": torch.arange(20.0), "o": {"text": "one"}}
READERS: dict[str, Callable[..., Any]] = {
    "own": streamxf.FileSystemReader,
    "fsspec": lambda path, **options: streamxf.FsspecReader(str(path), **options),
    "attached": lambda path, **options: streamxf.attach(dcp.FileSystemReader(path), **options),
}
WORDS = ("published", "bound", "encrypted")


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> str:
    return request.param


def words_for(reader: str) -> tuple[str | None, ...]:
    """What may be required; None is the default."""
    return (None, *(WORDS if reader != "attached" else WORDS[1:]))


def save_own(path: Path, chain: list[Any]) -> None:
    dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(path, _extensions=chain, sync_files=False))


def save_attached(path: Path, chain: list[Any]) -> None:
    dcp.save(STATE, storage_writer=streamxf.attach(dcp.FileSystemWriter(path, sync_files=False), chain))


def save_stock(path: Path, chain: list[Any] | None) -> None:
    dcp.save(STATE, storage_writer=dcp.FileSystemWriter(path, _extensions=chain, sync_files=False))


def check_words(path: Path, reader: str, accepted: set[str | None], words: tuple[str, ...]) -> None:
    """Only the words that are `accepted` read the checkpoint; the refusals say all of `words`."""
    for require in words_for(reader):
        options = {} if require is None else {"require": require}
        made = READERS[reader](path, keys=KEY, **options)
        if require in accepted:
            assert_same(load_with(STATE, made), STATE)
        else:
            with refused(PolicyError, *words):
                load_with(STATE, made)


UNENCRYPTED: dict[str, Callable[[Path], None]] = {
    "own, codecs": lambda path: save_own(path, [ZStandard(), Checksum()]),
    "own, bare": lambda path: save_own(path, []),
    "own, foreign": lambda path: save_own(path, [TorchZStandard()]),
    "attached": lambda path: save_attached(path, [Checksum()]),
    "stock": lambda path: save_stock(path, None),
    "stock with a codec": lambda path: save_stock(path, [ZStandard()]),
    "stock, foreign": lambda path: save_stock(path, [TorchZStandard()]),
}


@pytest.mark.parametrize("how", UNENCRYPTED)
def test_unencrypted_items_are_refused(checkpoint: Path, reader: str, how: str) -> None:
    UNENCRYPTED[how](checkpoint)
    check_words(checkpoint, reader, set(), ("leave the keys out if you know that it was not encrypted",))
    assert_same(load_with(STATE, READERS[reader](checkpoint)), STATE)


def test_unbound_items_are_refused(checkpoint: Path, reader: str) -> None:
    save_stock(checkpoint, full_chain())
    check_words(checkpoint, reader, {"encrypted"}, ("require='encrypted'",))


def test_unpublished_items_are_refused(checkpoint: Path, reader: str) -> None:
    save_attached(checkpoint, full_chain())
    accepted = {"bound", "encrypted"} | ({None} if reader == "attached" else set())
    check_words(checkpoint, reader, accepted, ("'bound'",))


def test_published_items_are_accepted(checkpoint: Path, reader: str) -> None:
    save_own(checkpoint, full_chain())
    check_words(checkpoint, reader, set(words_for(reader)), ())


def test_stripped_items_are_refused(checkpoint: Path, reader: str) -> None:
    """No word relaxes this: encrypted items whose chain was taken away."""
    save_attached(checkpoint, full_chain())

    def strip(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.transform_descriptors = None

    rewrite_pickle(checkpoint, strip)
    if reader != "attached":
        with refused(PolicyError, "does not end in an index"):
            load_with(STATE, READERS[reader](checkpoint, keys=KEY))
    for require in words_for(reader)[0 if reader == "attached" else 2 :]:
        with refused(MetadataError, "descriptors were removed"):
            load_with(STATE, READERS[reader](checkpoint, keys=KEY, **({"require": require} if require else {})))


def test_a_stripped_trailer_is_refused(checkpoint: Path, reader: str) -> None:
    """An attached reader reads the metadata past its trailer, and misses nothing."""
    save_own(checkpoint, full_chain())
    file = checkpoint / ".metadata"
    file.write_bytes(sections_of(checkpoint)[0])
    for require in words_for(reader):
        options = {} if require is None else {"require": require}
        error = error_of(lambda options=options: load_with(STATE, READERS[reader](checkpoint, keys=KEY, **options)))
        if reader == "attached":
            assert error is None
        elif require in (None, "published"):
            assert isinstance(error, PolicyError)
            assert "require='encrypted' (or 'bound'" in str(error)
        else:
            assert isinstance(error, MetadataError)
            assert "and the metadata has none: it was removed" in str(error)


@pytest.mark.parametrize("reader", ["own", "fsspec"])
def test_what_only_a_private_key_opens_must_be_signed(checkpoint: Path, reader: str) -> None:
    """Anybody can have the public key, so it says nothing of who wrote."""
    private, signer, stranger = PrivateKey.generate(), SigningKey.generate(), SigningKey.generate()
    trust = {"trust": signer.verify_key}
    cases: list[tuple[SigningKey | None, dict[str, Any], bool]] = [
        *[(signer, trust, True), (signer, {}, False), (stranger, trust, False)],
        *[(stranger, {"trust": [signer.verify_key, stranger.verify_key]}, True), (None, trust, False)],
        *[(None, {}, False), (None, {"allow_unsigned": True}, True)],
    ]
    for by, options, accepted in cases:
        save_own(checkpoint, [Encrypt(private.public, signer=by)])
        made = READERS[reader](checkpoint, keys=private, **options)
        if accepted:
            assert_same(load_with(STATE, made), STATE)
        else:
            unsigned = "have it saved with a signer" if options else "(allow_unsigned)"
            cure = unsigned if by is None else "pass the signer's public key (trust)"
            with refused(PolicyError, cure, "A KeyRing holds"):
                load_with(STATE, made)


def test_accepting_what_is_unsigned_needs_keys_and_no_signers(checkpoint: Path) -> None:
    for trust, why in ((None, "without keys nothing"), (SigningKey.generate().verify_key, "trust= names who")):
        with pytest.raises(ParameterError, match=why):
            streamxf.FileSystemReader(checkpoint, trust=trust, allow_unsigned=True)
