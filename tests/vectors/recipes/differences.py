"""Checkpoints of one tensor that is stored as its difference from a container beneath, or one upon the other."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.differences_forge import forge
from tests.forge import BOUND, KEYED, PUBLISHED, Band, Parts, crc_of, identity_of
from tests.sealing import DEK, ENCRYPT, SIGNER, Vouching, container, encrypted, secret
from tests.vectors.recipes.data import numbers
from tests.vectors.recipes.world import CHECKSUM, FILE, TENSOR, WRITERS, Piece, put, world

FLOATZIP = "streamxf.floatzip/1"
BASED = 8
SIZE = 600  # bytes
FULL = (FLOATZIP, CHECKSUM, ENCRYPT)


def stepped(data: bytes, seed: int) -> bytes:
    """Some elements one further."""
    choose, made = random.Random(seed), bytearray(data)
    for place in choose.sample(range(0, SIZE, 2), 20):
        made[place] ^= 1
    return bytes(made)


START = numbers(SIZE, 2, 7)
DATA = [START, stepped(START, 1), stepped(stepped(START, 1), 2)]


def of(
    datas: Sequence[bytes] = DATA[:2],
    chain: Sequence[str] = (FLOATZIP,),
    *,
    payloads: dict[int, bytes] | None = None,
    above: dict[str, Any] | None = None,
    below: dict[str, Any] | None = None,
    later: Callable[[Parts], Parts] | None = None,
    places: Callable[[list[int]], list[int]] | None = None,
    base: bytes | None = None,
    **signing: Any,
) -> dict[str, bytes]:
    """The files. The first of `datas` is stored whole, each other one as its difference, or in the `payloads`.

    `above` and `below` are what the containers above and beneath have that they should not have, and `later` changes
    the lowest once the others are made upon it; `places` changes what the index says is beneath.
    """
    keyed, made = ENCRYPT in chain, list[Parts]()
    for number, data in enumerate(datas):
        payload = b"\0" + data if not number else forge(datas[number - 1], data, 2, 1, random.Random(number))
        payload = (payloads or {}).get(number, payload)
        payload += crc_of(payload) if CHECKSUM in chain else b""
        flags = BOUND | PUBLISHED | KEYED * keyed | BASED * bool(number)
        about: tuple[Any, ...] = ("x", TENSOR, "bfloat16", (0,), (SIZE // 2,), (SIZE // 2,))
        usual: dict[str, Any] = {
            "flags": flags,
            "identity": identity_of(*about, writer=WRITERS[0], number=len(datas) - 1 - number),
            "salt": secret(f"salt {number}")[:16],
            "base": made[-1].digest if number else b"",
        }
        usual |= (above or {}) if number == len(datas) - 1 else (below or {})
        usual["base"] = base if base is not None and number else usual["base"]
        part = container([text.partition("#")[0] for text in chain], [payload], len(data), **usual)
        made.append(encrypted(part, DEK) if keyed else part)
    top, lower = made[-1], made[-2::-1]
    digests = [digest.hex() for part in lower for digest in part.digests]
    if later is not None:
        lower[-1] = later(lower[-1])
    piece = Piece("x", TENSOR, datas[-1], "bfloat16", (0,), (SIZE // 2,), (SIZE // 2,), stored=lambda _: top)
    whole = replace(world([piece], chain, **signing), format_bytes=bytes([1, 1, 1, 0]))
    beneath = list[int]()
    for part in lower:
        stored = part.container()
        beneath += [0, len(whole.data[FILE]), len(stored)]
        whole.data[FILE] += stored
    if "digests" in whole.index:
        whole.index["digests"] += digests
    whole.index["files"][0]["size"] = len(whole.data[FILE])
    beneath = beneath if places is None else places(beneath)
    return whole.files(
        bands=[Band(["x"], change=lambda found: found.update({21: [len(beneath) // 3], 22: beneath}))],
        root=put("bases", value=[{"save_id": "ab" * 16, "folder": "step-1"}]),
    )


signed: dict[str, Any] = {"signers": (SIGNER,)}
both: dict[str, Any] = {"vouching": Vouching(signer=SIGNER)}


def identity(dtype: str = "bfloat16", **more: Any) -> bytes:
    """Of the lowest of two, but for what is said."""
    about: tuple[Any, ...] = ("x", TENSOR, dtype, (0,), (SIZE // 2,), (SIZE // 2,))
    return identity_of(*about, **{"writer": WRITERS[0], "number": 1, **more})


def other_block(part: Parts) -> Parts:
    """Another block under the same header."""
    return replace(part, blocks=((True, b"\0" + stepped(START, 9)),))


def other_salt(part: Parts) -> Parts:
    """The same under another header, so that H is another."""
    return replace(part, salt=bytes(16))


NOTHING = bytes([0x81]) + crc_of(START) + b"\0"
WHOLE = b"\0" + DATA[1]
NOISE = numbers(SIZE, 2, 8)  # another block, so that the difference is longer than one may be
# nothing changed, as one set says in two bands, of elements without contexts, or of rows of one element each
BANDS = bytes([0x81]) + crc_of(START) + b"\1" + (1 << 1 | 254 << 2).to_bytes(3, "little")
ROWS = bytes([0x85]) + crc_of(START) + b"\1" + (1 | 1 << 1 | 1 << 6 | 1 << 12 | 254 << 13).to_bytes(6, "little")
