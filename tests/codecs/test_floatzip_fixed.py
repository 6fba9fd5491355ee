"""FloatZip's fixed planes, which `FloatZip(speed=2)` writes: by the kernel, by numpy, and as the page has them."""

import numpy as np
import pytest
import torch

from streamxf.codecs.floatzip.kernel import compiled as kernel
from tests.codecs.implementations import IMPLEMENTATIONS, stored
from tests.codecs.test_floatzip_reference import by_page
from tests.floatzip_forge import FIXED, RAW, Shape, features, forge

if kernel is None:
    pytest.skip("FloatZip's kernel was not built, or is not to be used", allow_module_level=True)

from tests.codecs.test_floatzip_kernel import (
    BLOCK,
    KINDS,
    WIDTHS,
    agreed,
    check,
    kernel_decodes,
    kernel_encodes,
    numbers,
)

FLOATS = [dtype for dtype, width in WIDTHS.items() if width > 1]
LEAST = 4096  # elements
EDGES = (LEAST - 1, LEAST, LEAST + 1, 9 * 512 - 1, 9 * 512, 9 * 512 + 1, 3 * 2048 + 32, BLOCK + 77)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", WIDTHS)
def test_sizes_at_every_edge(dtype: str, kind: str) -> None:
    data = numbers(kind, dtype, max(EDGES), 1)
    for count in EDGES:
        check(data[: count * WIDTHS[dtype] + count % 2], dtype, speed=2)


def test_it_is_written_where_it_costs_little() -> None:
    for name in IMPLEMENTATIONS:
        for dtype, share in (("bfloat16", 0.71), ("float16", 0.90), ("float32", 0.86)):
            for kind in KINDS:
                block = numbers(kind, dtype, BLOCK, 2)
                found = stored(block, dtype, None, name, speed=2)
                assert ("fixed" in features(found)) == (kind in ("gaussian", "outliers")), (name, dtype, kind)
                assert kind != "gaussian" or len(found) < share * len(block)
            small = numbers("gaussian", dtype, LEAST - 1, 2)
            assert stored(small, dtype, None, name, speed=2) == stored(small, dtype, None, name)
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        block = numbers("gaussian", dtype, BLOCK, 2)
        assert kernel_encodes(block, 1, 0, 2) == kernel_encodes(block, 1)


@pytest.mark.parametrize(("dtype", "crowd"), [("bfloat16", 30_000), ("bfloat16", 12_000), ("float32", 15_000)])
def test_exceptions_that_the_sample_does_not_meet(dtype: str, crowd: int) -> None:
    """One in 16 may be one; where there are more, the plane is packed, or coded."""
    width, block = WIDTHS[dtype], bytearray(numbers("gaussian", dtype, (1 << 20) // WIDTHS[dtype], 5))
    for place in range(1000, 1000 + crowd):  # the first of 16 runs ends before, the next begins after
        block[place * width + width - 1] = 1 + place % 3
    check(bytes(block), dtype, speed=2)
    assert ("fixed" in features(kernel_encodes(bytes(block), width, 0, 2) or b"\0")) == (crowd == 12_000)


@pytest.mark.parametrize(("bits", "width"), [*((bits, 2) for bits in range(1, 8)), (1, 4), (4, 8), (6, 4), (7, 8)])
def test_gaps_of_every_length(bits: int, width: int) -> None:
    """Where a gap is more than a byte, where elements are handled at a time, and at both ends."""
    count = 5001
    for places in ([], [0], [255], [256], [257, 512, 769, 2047], [2048], [2047, 2048, 4095, 5000], [*range(500)]):
        plane = bytearray([250 + k % (1 << bits) & 255 for k in range(count)])
        for place in places:
            plane[place] = 249
        block = b"\1" + b"".join(bytes(width - 1) + bytes([value]) for value in plane)
        shape = Shape(width, False, 1, [*[(RAW, 1)] * (width - 1), (FIXED, 1)], 250, bits=bits)
        payload = forge(block, shape, idle_halves=5)
        assert agreed(payload, len(block)) == block == kernel_decodes(payload, len(block))


def fixed(plane: bytes, count: int = 700) -> bytes:
    """A payload of `count` elements of two bytes, the high ones of which are stored so."""
    head = b"\x41" + (2 * count).to_bytes(4, "little") + b"\0" + count.to_bytes(4, "little") + b"\5"
    return head + len(plane).to_bytes(4, "little") + b"\0" + bytes(count) + plane


def test_what_is_refused() -> None:
    codes = bytes(2 * 64 * 3)
    good = bytes([9, 3, 0, 0, 2, 0, 0, 0]) + codes + b"\xff\xff" + b"ab"
    # the codes of the last 4 of 8 * 64 elements above each other, from bit 12 on, beyond element 700 - 512 = 188
    bad = {
        "no bits": bytes([9, 0, 0, 0, 2, 0, 0, 0]) + b"\xff\xff" + b"ab",
        "eight bits": bytes([9, 8, 0, 0, 2, 0, 0, 0]) + bytes(2 * 64 * 8) + b"\xff\xff" + b"ab",
        "a reserved byte": good[:2] + b"\1" + good[3:],
        "another one": good[:3] + b"\1" + good[4:],
        "one more exception": good[:4] + b"\3" + good[5:],
        "one less": good[:4] + b"\1" + good[5:],
        "2^32 - 1 exceptions": good[:4] + b"\xff\xff\xff\xff" + good[8:],
        "2^31 exceptions": good[:4] + b"\0\0\0\x80" + good[8:],
        "a code behind the last element": good[: 8 + 64 * 3 + 63] + b"\x80" + good[8 + 64 * 3 + 64 :],
        "a byte more": good + b"\0",
        "a byte less": good[:-1],
        "seven bytes": good[:7],
        "nothing": b"",
        "an exception behind the last element": bytes([9, 3, 0, 0, 3, 0, 0, 0]) + codes + b"\xff\xff\xbc" + b"abc",
    }
    last = bytes([9, 3, 0, 0, 3, 0, 0, 0]) + codes + b"\xff\xff\xbb" + b"abc"
    for plane in (good, last, good[: 8 + 64 * 3 + 59] + b"\x80" + good[8 + 64 * 3 + 60 :]):
        payload = fixed(plane)
        assert agreed(payload, 1400) == by_page(payload, 1400) == kernel_decodes(payload, 1400) != None  # noqa: E711
    for name, plane in bad.items():
        payload = fixed(plane)
        assert isinstance(agreed(payload, 1400), str), name
        assert by_page(payload, 1400) is None, name
        assert kernel_decodes(payload, 1400) is None, name


def test_a_block_that_changes_meanwhile_is_not_longer() -> None:
    """Encoding looks at a plane of its own; what it reads twice would be seen by a sanitizer."""
    weights = torch.randn(1 << 17, generator=torch.Generator().manual_seed(1)).bfloat16().view(torch.uint8).numpy()
    found = kernel_encodes(weights.tobytes(), 2, 0, 2)
    assert found is not None
    out = np.empty(len(weights), np.uint8)
    assert kernel.decode(np.frombuffer(found, np.uint8), out, np.empty(kernel.work_size(len(out)), np.uint8))
    assert np.array_equal(out, weights)
