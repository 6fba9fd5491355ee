"""What the tests of `streamxf.rekey` share: the keys of metadata files, looked at and forged."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamxf import Key, PrivateKey, SigningKey
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import Metadata
from streamxf.errors import KeyMissingError
from streamxf.format.sections import pack_keys
from streamxf.keys import KeyRing
from streamxf.keys.envelope import WRAPPED_KEY, Envelope, Vouchers
from tests.dcp.helpers import refused, rewritten, sections_of

KEY = Key(bytes(range(32)))
OTHER_KEY = Key(bytes(range(1, 33)))
THIRD = Key(bytes(range(9, 41)))
PRIVATE = PrivateKey(bytes(range(2, 34)))
SHORT = PrivateKey(bytes(range(3, 35)), "hpke-x25519")
SIGNER = SigningKey(bytes(range(4, 36)))
STRANGER = SigningKey(bytes(range(5, 37)))


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def untouched(action: Callable[[], Any], path: Path, kind: type[BaseException], *words: str) -> None:
    """Expect a refusal that leaves every file as it was, and none beside them."""
    before = contents(path)
    with refused(kind, *words):
        action()
    assert contents(path) == before


def lines(path: Path, name: str = ".metadata") -> tuple[str, str, list[str]]:
    """The publisher's wrapped data key, the vouchers, and others' wrapped data keys, as torch's readers have them."""
    head, sections = sections_of(path, name)
    found = sections.key_lines()
    assert found is not None
    there = dict.fromkeys(text.decode() for text in WRAPPED_KEY.findall(head))
    return *found, [text for text in there if text[:68] != found[0][:68]]


def envelopes(path: Path, name: str = ".metadata") -> list[Envelope]:
    wrapped, _, others = lines(path, name)
    return [Envelope.parse(line) for line in (wrapped, *others)]


def vouchers(path: Path, name: str = ".metadata") -> Vouchers:
    return Vouchers.parse(lines(path, name)[1])


def forge(path: Path, wrapped: list[str], made: str, name: str = ".metadata") -> None:
    """Put other keys into a metadata file, whatever they are; those of other writers, where torch's readers find them.
    The digests are made right.
    """
    head, sections = sections_of(path, name)
    for old, new in zip(lines(path, name)[2], wrapped[1:], strict=False):
        head = head.replace(old.encode(), new.encode())
    (path / name).write_bytes(rewritten(sections, head=head, keys=pack_keys(wrapped[0], made)))


def reforge(path: Path, change: Callable[[Envelope], Envelope], name: str = ".metadata", **fields: Any) -> None:
    """What someone who can read may do: alter recipients or vouchers, under a MAC that is right."""
    digest = sections_of(path, name)[1].digest
    before, made = envelopes(path, name), vouchers(path, name)
    data_key = KeyRing.of(KEY).unwrap(str(before[0]))
    after = [str(change(envelope)) for envelope in before]
    kept, signatures = fields.get("entries", made.entries), fields.get("signatures", made.signatures)
    forge(path, after, str(Vouchers.make(digest, after[0], data_key, [], kept=kept, signatures=signatures)), name)


def opens(path: Path, keys: Any, name: str = ".metadata", **policy: Any) -> bool:
    """Whether keys open a metadata file and all data keys in it; other errors are raised."""
    access = Access.of(keys, **policy)
    try:
        metadata = Metadata.of(sections_of(path, name)[1], name, access)
    except KeyMissingError:
        return False
    keys_of_files = {file.key for file in metadata.files.values() if file.key is not None}
    return all(metadata.data_key(key, access.keys) for key in keys_of_files)


def apart(path: Path, name: str = ".metadata") -> tuple[bytes, list[bytes], Any]:
    """A metadata file without what is meant to change: index, ids of data keys, and the pickle's content."""
    head, sections = sections_of(path, name)
    content = pickle.loads(head)
    for info in content.storage_data.values():
        info.transform_descriptors = [text.partition("#")[0] for text in info.transform_descriptors]
    return bytes(sections.root), [envelope.dek_id for envelope in envelopes(path, name)], content
