"""Notes: their content, keys and trailer."""

import json
from typing import Any

from streamxf.codecs.zstd import compressor
from tests.forge import MetadataParts, frame_of
from tests.sealing import (
    HYBRID,
    KEY,
    SIGNER,
    Signer,
    Vouching,
    aes_wrap,
    entry,
    hpke_wrap,
    index_digest,
    note_digest,
    secret,
    signature,
    wrapped,
)
from tests.vectors.recipes.runs import RUN

RECORD = {
    "save_id": secret("save id").hex()[:32],
    "run": RUN,
    "files": [
        {"path": "model.safetensors", "size": 2**40, "sha256": secret("file").hex()},
        {"path": "a/b", "size": 0, "checksum": "crc64nvme:AAAAAAAAAAA="},
        {"path": "größe", "size": 7},
    ],
}
TEXT = json.dumps(RECORD)
SHARED = Vouching()
SIGNED = Vouching(signer=SIGNER)
PRIVATE = Vouching(wrapped([entry(*hpke_wrap(HYBRID))]), (), SIGNER)
BOTH = Vouching(wrapped([entry(*hpke_wrap(HYBRID)), aes_wrap()]), (KEY,), SIGNER)


def parts(content: Any = RECORD, vouching: Vouching | None = None) -> MetadataParts:
    """Of JSON, or of a frame as it is stored."""
    packed = content if isinstance(content, bytes) else frame_of(json.dumps(content).encode())
    keys = f"{vouching.wrapped}\n{vouching.vouchers(note_digest(packed))}" if vouching is not None else ""
    return MetadataParts(b"", packed, keys.encode())


def nested(depth: int) -> Any:
    made: Any = []
    for _ in range(depth - 1):
        made = [made]
    return made


def content() -> dict[str, Any]:
    text = TEXT.encode()
    return locals()


def commas(count: int) -> bytes:
    return compressor(3).compress(json.dumps("," * count).encode())


def around() -> dict[str, Any]:
    made = parts()
    whole = made.pack()
    return locals()


def keys() -> dict[str, Any]:
    made, frame = parts(vouching=SHARED), frame_of(TEXT.encode())
    line = wrapped([aes_wrap()])

    def keys(*lines: str) -> bytes:
        return made.change(keys="\n".join(lines).encode("latin-1")).pack()

    def opened(signer: Signer) -> bytes:
        """Signed, and nothing else."""
        return keys("", signature(note_digest(frame), signer))

    of_index = Vouching().vouchers(index_digest(frame))
    return locals()


def forms() -> dict[str, Any]:
    """What each of the notes of a run says."""
    save, digest = RECORD["save_id"], secret("file").hex()
    note = {"save_id": save, "time": 7, "metrics": {"loss": "3ff0000000000000"}, "sha256": {"a/b": digest}}
    saving = {"run": save, "name": "step-7", "time": 7, "session": save, "before": {"a/b": "7 x"}, "framework": True}
    file = RECORD["files"][0]

    def of(record: dict[str, Any], **changes: Any) -> bytes:
        return parts({name: each for name, each in {**record, **changes}.items() if each != "left out"}).pack()

    def of_file(**changes: Any) -> bytes:
        return of(RECORD, files=[{**file, **changes}])

    return locals()
