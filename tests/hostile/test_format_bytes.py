"""Every bit of version, suite and flags flipped, of containers, plain files, metadata and notes, with and without keys
and signatures; CRCs and digests are right. With a key none of them is accepted, the informative flags neither: other
data depends on them. The zeros behind them in a trailer are zero for everyone.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamxf import Checksum, Encrypt, PrivateKey, SigningKey, ZStandard
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.notes import Note
from streamxf.errors import AuthenticationError, MetadataError, UnsupportedError
from streamxf.format.limits import NO_PICKLE
from streamxf.keys import KeyRing
from tests.altered import bit_flips
from tests.dcp.helpers import KEY, full_chain
from tests.forge import MetadataParts, prefix_of, split_metadata
from tests.reference_codecs import Refused
from tests.reference_decoder import load as reference_load
from tests.reference_decoder import read_plain
from tests.reference_keys import Reader, aes_key, hpke_key

from .rows import Row
from .targets import TEXT, Checkpoint, Container, PlainFile

ROW = "version, suite, flags"

INFORMATIVE = 3  # of the four bytes
SIGNER, HOLDER = SigningKey(bytes(range(2, 34))), PrivateKey(bytes(range(3, 35)))
CHAINS: dict[str, list[Any]] = {
    "unkeyed": [ZStandard(), Checksum()],
    "keyed": full_chain(),
    "signed": [ZStandard(), Encrypt([HOLDER.public], signer=SIGNER)],
}
KEYS: dict[str, Any] = {"unkeyed": None, "keyed": KEY, "signed": KeyRing(HOLDER, trust=SIGNER.verify_key)}
REFERENCE = {
    "unkeyed": Reader(),
    "keyed": Reader([aes_key(KEY.reveal())]),
    "signed": Reader([hpke_key(HOLDER.kind, HOLDER.reveal())], [SIGNER.verify_key.data]),
}
chains = pytest.mark.parametrize("chain", CHAINS)


def flips(format_bytes: bytes) -> Iterator[tuple[int, bytes]]:
    """Which of the four bytes is another, and what they are then."""
    for bit, changed in enumerate(bit_flips(format_bytes)):
        yield bit // 8, changed


def judge(row: Row, place: int, keyed: bool, right: Any, refusal: type[Exception], load: Any, data: bytes) -> None:
    """Whoever has no key cannot tell an informative flag that was set later from one that always was."""
    if place == INFORMATIVE and not keyed:
        assert row.refuse_or_equal(place, right, load, data) is None
    else:
        kind = AuthenticationError if place == INFORMATIVE else refusal
        assert isinstance(row.refuse(place, load, data), (kind, AuthenticationError))


def judge_trailer(
    row: Row, parts: MetadataParts, keyed: bool, right: Any, load: Any, increment: type[Exception] = UnsupportedError
) -> None:
    for place, changed in flips(parts.format_bytes):
        refusal = increment if changed[2] == 1 else UnsupportedError
        judge(row, place, keyed, right, refusal, load, parts.change(format_bytes=changed).pack())
    for place, changed in flips(parts.reserved):
        row.refuse(place, load, parts.change(reserved=changed).pack())


@pytest.mark.parametrize(
    ("chain", "pipe"),  # no reader of a pipe takes what is signed
    [*((chain, False) for chain in CHAINS), ("unkeyed", True), ("keyed", True)],
)
def test_plain_files(row: Row, chain: str, pipe: bool) -> None:
    file, keyed = PlainFile(TEXT, CHAINS[chain], pipe=pipe), chain != "unkeyed"
    file.keys = KEYS[chain]
    assert file.load(file.file) == TEXT
    assert file.file[8:12] == bytes([1, 1, 0, 0])
    for place, changed in flips(file.file[8:12]):
        data = prefix_of(file.wrapped, changed) + file.file[len(file.parts.prefix) :]
        judge(row, place, keyed, TEXT, UnsupportedError, file.load, data)
        if keyed or place != INFORMATIVE:
            with pytest.raises(Refused):
                read_plain(data, REFERENCE[chain])
        else:
            assert read_plain(data, REFERENCE[chain]) == TEXT
    check_container(row, file.container(), keyed, TEXT)


def check_container(row: Row, container: Container, keyed: bool, right: Any) -> None:
    intact = container.intact
    for place, changed in flips(intact[8:12]):
        data = container.mended(intact[:8] + changed + intact[12:])
        if keyed:
            row.refuse(place, container.load, data)
        else:  # an attached reader does not mind a container that says it was published
            row.refuse_or_equal(place, right, container.load, data)


def checkpoint_of(folder: Path, chain: str, writer: str = "own") -> Checkpoint:
    return Checkpoint(folder, chain=CHAINS[chain], keys=KEYS[chain], keyed=chain != "unkeyed", writer=writer)


@pytest.mark.parametrize(
    ("writer", "chain"), [*(("own", chain) for chain in CHAINS), ("attached", "unkeyed"), ("attached", "keyed")]
)
def test_containers(row: Row, checkpoint: Path, writer: str, chain: str) -> None:
    target = checkpoint_of(checkpoint, chain, writer)
    for container in target.containers():
        check_container(row, container, chain != "unkeyed", target.right)


@pytest.mark.parametrize("pickled", [True, False])
@chains
def test_metadata(row: Row, checkpoint: Path, chain: str, pickled: bool) -> None:
    target, keyed = checkpoint_of(checkpoint, chain), chain != "unkeyed"
    parts = split_metadata(target.metadata).change(index=packed_index(target.metadata))
    assert parts.pack() == target.metadata
    if not pickled:
        parts = parts.change(pickled=NO_PICKLE)
    assert target.with_metadata(parts.pack()) == target.right
    # readers know increments, and what these have in their roots
    judge_trailer(row, parts, keyed, target.right, target.with_metadata, MetadataError)
    for place, changed in flips(parts.format_bytes):
        target.metadata_file.write_bytes(parts.change(format_bytes=changed).pack())
        if keyed or place != INFORMATIVE:
            with pytest.raises(Refused):
                reference_load(checkpoint, REFERENCE[chain])
        else:
            reference_load(checkpoint, REFERENCE[chain])


def packed_index(metadata: bytes) -> bytes:
    """As it is stored, and vouched for."""
    root, keys = (int.from_bytes(metadata[at : at + 4], "little") for at in (len(metadata) - 88, len(metadata) - 84))
    start = len(metadata) - 104 - keys - root
    return metadata[start : start + root]


@chains
def test_notes(row: Row, chain: str) -> None:
    encryption = next((codec.renew() for codec in CHAINS[chain] if isinstance(codec, Encrypt)), None)
    note = Note.seal({"a": 1}, encryption)
    access = Access.of(KEYS[chain])

    def load(data: bytes) -> Any:
        found = Note.parse(data)
        found.check(access)
        return found.content

    parts = split_metadata(note).change(index=packed_index(note))
    assert parts.pack() == note
    judge_trailer(row, parts, chain != "unkeyed", {"a": 1}, load)
