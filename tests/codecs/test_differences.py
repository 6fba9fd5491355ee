"""Differences: the kernel and the reference decode each other's payloads, and what a forge makes of every choice that
the format leaves; and they refuse alike what is damaged.

All memory that the kernel is given has exactly the size that it asks for; `make sanitize` runs these tests on a kernel
that was built with two sanitizers.
"""

import json
import random
import shutil
import subprocess
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import pytest

from streamxf.codecs.floatzip import differences
from streamxf.codecs.floatzip import kernel as kernels
from streamxf.errors import ChecksumError, CodecError
from streamxf.tools import inspect
from tests.differences_forge import Bits, forge, pair
from tests.reference_codecs import Refused, decode_difference

PAGE = Path(inspect.__file__).parent / "page"
kernel = kernels.compiled
needs_kernel = pytest.mark.skipif(kernel is None, reason="the kernel was not built")


def reference(base: bytes, payload: bytes, monkeypatch: pytest.MonkeyPatch) -> bytes | str:
    """What the reference makes of a payload, or the text of its refusal; the kernel refuses the same ones, and agrees
    on the others: none is left to the reference, which is slower.
    """
    out = bytearray(len(base))
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "compiled", None)
        try:
            differences.decode(memoryview(base), memoryview(payload), memoryview(out))
        except (CodecError, ChecksumError) as error:
            found: bytes | str = str(error)
        else:
            found = bytes(out)
    compiled, right = kernel_decodes(base, payload)
    assert compiled is not None or isinstance(found, str) or kernel is None
    assert compiled is None or (compiled == found if right else "beneath" in str(found))
    return found


def exactly(data: bytes) -> np.ndarray:
    """The bytes in memory of just their size, which a sanitizer watches."""
    return np.frombuffer(data, np.uint8).copy()


def kernel_decodes(base: bytes, payload: bytes) -> tuple[bytes | None, bool]:
    if kernel is None:
        return None, False
    out = np.empty(len(base), np.uint8)
    work = np.empty(kernel.difference_work_size(len(base)), np.uint8)
    done = kernel.decode_difference(exactly(base), exactly(payload), out, work)
    right = crc32c.crc32c(out) == int.from_bytes(payload[1:5], "little")
    assert done in (0, 1 + right) or (done == 1 and kernel.crc32c(b"", 0) is None)
    return out.tobytes() if done else None, right


def kernel_encodes(pair: tuple[bytes, bytes, int, int, int, int], room: int | None = None) -> bytes | None:
    assert kernel is not None
    base, new, *layout = pair
    out = np.empty(8 + (2 * len(base) + 100 if room is None else room), np.uint8)
    work = np.empty(kernel.difference_work_size(len(base)), np.uint8)
    size = kernel.encode_difference(exactly(base), exactly(new), out, work, *layout)
    crc, made = crc32c.crc32c(new).to_bytes(4, "little"), out[:size].tobytes()
    assert made[1:5] == crc or not size or (not any(made[1:5]) and kernel.crc32c(b"", 0) is None)
    return made[:1] + crc + made[5:] if size else None


def assert_decoded(new: bytes, payload: bytes, found: bytes | str) -> None:
    """As it must, or refused because it is too long, which the forge and the kernel's encoder do not look at."""
    assert found == new if len(payload) <= len(new) // 2 + 64 else "too long" in str(found)


@needs_kernel
@pytest.mark.parametrize("seed", range(50))
def test_both_decode_what_the_kernel_encodes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = pair(seed, None if seed % 10 else 20_000)
    payload = kernel_encodes(made)
    assert payload is not None
    assert_decoded(made[1], payload, reference(made[0], payload, monkeypatch))
    for room in (len(payload), len(payload) - 1, len(payload) // 2, 6):
        shorter = kernel_encodes(made, room) if room >= 6 else None
        assert shorter == (payload if room == len(payload) else None) or len(payload) <= room


@pytest.mark.parametrize("seed", range(40))
def test_both_decode_every_layout_that_the_format_allows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    base, new, width, banded, row, _ = pair(seed, seed)
    choose = random.Random(seed)
    payload = forge(base, new, width, banded, choose, row if seed % 2 else choose.randrange(9))
    assert_decoded(new, payload, reference(base, payload, monkeypatch))


def damaged(payload: bytes, choose: random.Random) -> bytes:
    """With some other bits, and cut off, or longer, or neither."""
    made = bytearray(payload)
    for _ in range(choose.randint(1, 3)):
        made[choose.randrange(len(made))] ^= 1 << choose.randrange(8)
    size = choose.choice((len(made), choose.randrange(len(made) + 1)))
    return bytes(made[:size]) + choose.randbytes(choose.choice((0, 0, 1, 9)))


@pytest.mark.parametrize("seed", range(30))
def test_damage_is_refused_or_found_by_the_crc(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(seed)
    base, new, width, banded, row, _ = pair(seed, 150)
    payload = forge(base, new, width, banded, choose, row)
    for _ in range(20):
        found = reference(base, damaged(payload, choose), monkeypatch)
        assert isinstance(found, str) or found == new


def head(levels: int, layout: int = 0x81) -> bytes:
    return bytes([layout, 0, 0, 0, 0, levels])


def hostile(*fields: tuple[int, int]) -> bytes:
    bits = Bits()
    for value, count in fields:
        bits.put(value, count)
    return bits.packed()


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", "no difference"),
        (head(0)[:5], "no difference"),
        (head(0, 0x01), "no difference"),
        (head(0, 0xC1), "layout 0xc1"),
        (head(0, 0x83), "layout 0x83"),
        (head(0, 0x89), "layout 0x89"),
        (head(17), "does not fit"),
        (head(0, 0x82), "does not fit"),
        (head(0) + b"\0", "after its last element"),
        (head(0) + bytes(135), "of 141 bytes is too long for a block of 152: at most 140"),
        (head(0) + bytes(134), "after its last element"),
        (head(1), "ends within its bits"),
        (head(1) + hostile((1, 1), (31, 5), (2**31 - 1, 31), (0, 5)), "rows of 2147483647"),
        (head(1) + hostile((1, 1), (0, 5), (0, 5)), "rows of 0"),
        (head(1) + hostile((1, 1), (2, 5), (3, 2), (2, 5), (3, 2)), "rows of 3 elements, 3 before"),
        (head(1, 0x85) + hostile((0, 1), (1, 1), (255, 8), (0, 1), (0, 5), (0, 1)), "bands that do not rise"),
        (head(1, 0x85) + hostile((0, 1), *[(1, 1), (9, 8), (0, 1), (0, 5)] * 2), "bands that do not rise"),
        (head(1, 0x85) + hostile((0, 1), *[field for cut in range(6) for field in ((1, 1), (cut, 8), (0, 6))]), "6 in"),
        (head(1) + hostile((0, 1), (1, 1), (9, 8), (0, 13)), "more than 1 in a set"),
        (head(1, 0x85) + hostile((1, 1), (1, 5), (1, 1), (0, 5), (1, 1), (9, 8), (0, 20)), "more than 1 in a set"),
        (head(1) + hostile((0, 2), (0, 1), (1, 5), (1, 1), (30, 5), (0, 64)), "within a gap"),
        (head(1) + hostile((0, 2), (0, 1), (1, 5), (1, 1), (31, 5), (1, 1), (2**31 - 1, 31)), "element 2147483647 of"),
        (head(1) + hostile((0, 2), (0, 1), (1, 5), (1, 1), (0, 5), (0, 76), (1, 1)), "element 76 of"),
        (
            head(1) + hostile((0, 2), (0, 1), (7, 5), (77, 7), (0, 5), (2**77 - 1, 77)),
            "lists 77 elements of a band that has 76",
        ),
        (head(1) + hostile((0, 2), (0, 1), (31, 5), (2**31 - 1, 31), (0, 5), (1, 900)), "lists 2147483647 elements"),
        (head(8, 0x80) + hostile((0, 1), *[(0, 1), (1, 1), (0, 5)] * 8), "ends within its bits"),
    ],
)
def test_what_no_payload_may_have(payload: bytes, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracemalloc.start()
    assert text in str(reference(bytes(150 if payload[:1] == b"\x82" else 152), payload, monkeypatch))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_set_of_more_elements_than_there_are_bits_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "compiled", None)
    block, payload = bytearray(1 << 22), head(8, 0x80) + hostile((0, 1), *[(0, 1), (1, 1), (0, 5)] * 8)
    tracemalloc.start()
    with pytest.raises(CodecError, match="ends within its bits"):
        differences.decode(memoryview(block), memoryview(payload), memoryview(block))
    assert tracemalloc.get_traced_memory()[1] < 2 * len(block)
    tracemalloc.stop()


def everybodys(count: int) -> list[tuple[bytes, bytes, bytes | None]]:
    """Bases with what the forge makes for them, half of it damaged, and what the reference decodes, if it does."""
    found: list[tuple[bytes, bytes, bytes | None]] = []
    for seed in range(count):
        choose = random.Random(seed)
        base, new, width, banded, row, _ = pair(seed, choose.randrange(400))
        payload = forge(base, new, width, banded, choose, row if seed % 3 else 0)
        payload = damaged(payload, choose) if seed % 2 else payload
        out = bytearray(len(base))
        try:
            differences.decode(memoryview(base), memoryview(payload), memoryview(out))
        except (CodecError, ChecksumError):
            found.append((base, payload, None))
        else:
            assert out == new
            found.append((base, payload, new))
    return found


def test_a_decoder_that_was_written_from_the_page_agrees() -> None:
    for base, payload, expected in everybodys(300):
        try:
            assert decode_difference(base, payload) == expected
        except Refused:
            assert expected is None, payload.hex()


SCRIPT = """
const { decodeDifference, Refused } = require(process.argv[1]);
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));
const results = JSON.parse(require("fs").readFileSync(0)).map(([base, payload]) => {
  try {
    return Buffer.from(decodeDifference(bytes(base), bytes(payload))).toString("hex");
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return null;
  }
});
console.log(JSON.stringify(results));
"""


def test_the_page_of_inspect_agrees() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed")
    found = everybodys(300)
    given = json.dumps([[base.hex(), payload.hex()] for base, payload, _ in found])
    command = [node, "-e", SCRIPT, str(PAGE / "reader.js")]
    ran = subprocess.run(command, input=given, check=True, capture_output=True, text=True)
    assert json.loads(ran.stdout) == [expected if expected is None else expected.hex() for *_, expected in found]


@needs_kernel
def test_another_base_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pair(5, 900)
    payload = kernel_encodes(made)
    assert payload is not None
    other = made[0][:-1] + bytes([made[0][-1] ^ 1])
    assert "beneath a difference" in str(reference(other, payload, monkeypatch))
    with pytest.raises(ChecksumError, match="beneath a difference"):
        differences.decode(memoryview(other), memoryview(payload), memoryview(bytearray(len(other))))


@needs_kernel
def test_changes_without_contexts_need_no_base_and_add_up() -> None:
    rng = np.random.default_rng(0)
    states = [rng.integers(0, 1 << 16, 5000).astype(np.uint16)]
    for _ in range(3):
        states.append(states[-1] + (rng.random(5000) < 0.02) * rng.integers(-9, 9, 5000).astype(np.uint16))
    total = states[0].copy()
    for before, after in pairwise(states):
        payload = differences.encode(before.data.cast("B"), after.data.cast("B"), "bfloat16", contexts=False)
        assert payload is not None
        found = differences.changes(payload, 10_000)
        assert found is not None
        places, deltas = found
        total[places] += deltas
        assert np.array_equal(total, after)
    with_contexts = differences.encode(states[0].data.cast("B"), states[1].data.cast("B"), "bfloat16")
    assert with_contexts is not None
    assert differences.changes(with_contexts, 10_000) is None


@needs_kernel
@pytest.mark.parametrize(("share", "most"), [(0, 0.0001), (0.0026, 0.0025), (0.02, 0.013), (0.12, 0.05), (0.9, None)])
def test_sizes(share: float, most: float | None) -> None:
    """Of raw; whether an element changes depends on its exponent. What takes half of a block is not stored so."""
    rng = np.random.default_rng(1)
    base = (rng.normal(0, 0.02, 1 << 18).astype("<f4").view("<u4") >> 16).astype("<u2")
    chance = 2.0 ** -(base >> 7 & 255).astype(float)
    new = base + (rng.random(1 << 18) < share * chance / chance.mean()) * rng.integers(1, 3, 1 << 18).astype("<u2")
    if most is None:
        new = rng.integers(0, 1 << 16, 1 << 18).astype("<u2")
    payload = differences.encode(base.data.cast("B"), new.astype("<u2").data.cast("B"), "bfloat16")
    assert (payload is None) == (most is None)
    assert payload is None or len(payload) < (most or 0) * base.nbytes


@needs_kernel
def test_buffers_that_do_not_fit() -> None:
    kernel: Any = kernels.compiled
    good: tuple[Any, ...] = (bytes(8), bytes(8), bytearray(99), bytearray(kernel.difference_work_size(8)))
    assert kernel.encode_difference(*good, 2, 8, 0, 0) == 6
    for place, other in ((1, bytes(6)), (2, bytearray(13)), (3, bytearray(99))):
        with pytest.raises(ValueError, match="of one size" if place == 1 else "too small"):
            kernel.encode_difference(*good[:place], other, *good[place + 1 :], 2, 8, 0, 0)
    for bad in ((3, 8, 0, 0), (8, 8, 0, 0), (2, 8, -1, 0), (2, 8, 0, -1)):
        with pytest.raises(ValueError, match="width must be"):
            kernel.encode_difference(*good, *bad)
    for place, other in ((2, bytearray(6)), (3, bytearray(99))):
        buffers: list[Any] = [bytes(8), bytes(6), bytearray(8), bytearray(kernel.difference_work_size(8))]
        buffers[place] = other
        with pytest.raises(ValueError, match="too small"):
            kernel.decode_difference(*buffers)
