"""FloatZip's kernel chooses loops by the processor; here it is compiled for each level of x86-64, and all must agree.
More mutations: ``python -m tests.codecs.test_floatzip_variants 10000000``.
"""

import importlib.util
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import ModuleType

import crc32c
import numpy as np
import pytest

from streamxf.codecs.checksum import crc32c_of
from streamxf.codecs.floatzip import kernel
from tests.altered import flipped
from tests.codecs.test_floatzip_kernel import WIDTHS
from tests.differences_forge import pair
from tests.exhaustive import DAY
from tests.floatzip_blocks import FLOATS, floats, moments
from tests.fuzz.target import corpus_of

CC = shutil.which(os.environ.get("CC") or "cc")
CPU = Path("/proc/cpuinfo")
FEATURES = CPU.read_text().split() if CPU.exists() else []
# levels of x86-64, the bits that what is chosen at run time may multiply at once, and what either needs
LEVELS = {
    ("x86-64", 0): "sse4_2",
    ("x86-64", 128): "avx2",
    ("x86-64-v3", 256): "vpclmulqdq",
    ("x86-64-v4", 0): "avx512bw",
}
# without clones, of which the processor would choose the same in all
FLAGS = "-std=c11 -O3 -fno-math-errno -shared -fPIC -DPy_LIMITED_API=0x030B0000 -DSTREAMXF_NO_CLONES"
PART = 4096  # bytes; CRCs are computed over three of them at once

if kernel.compiled is None or CC is None or not any(each in FEATURES for each in LEVELS.values()):
    pytest.skip("the kernel was not built, or there is no compiler or no x86-64 here", allow_module_level=True)


def build(level: str, most: int, folder: Path) -> ModuleType:
    path = folder / f"_kernel-{level}-{most}.so"
    source = Path(kernel.__file__).with_name("_kernel.c")
    include = f"-I{sysconfig.get_path('include')}"
    flags = [*FLAGS.split(), f"-march={level}", f"-DSTREAMXF_MOST={most}", include]
    subprocess.run([str(CC), *flags, str(source), "-o", str(path), "-lm"], check=True)
    spec = importlib.util.spec_from_file_location("_kernel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built(folder: Path) -> list[ModuleType]:
    """The kernel that is in use, and every second one, others each day, of the levels that this processor has."""
    levels = [level for level, feature in LEVELS.items() if feature in FEATURES]
    return [kernel.compiled, *(build(*level, folder) for level in levels[DAY % 2 :: 2] or levels)]


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> list[ModuleType]:
    return built(tmp_path_factory.mktemp("kernels"))


def encoded(variant: ModuleType, block: bytes, width: int, row: int, speed: int) -> bytes:
    out = np.empty(variant.encode_bound(len(block)), np.uint8)
    size = variant.encode(block, out, np.empty(variant.work_size(len(block)), np.uint8), width, row, speed)
    return out[: max(0, size)].tobytes()


def decoded(variant: ModuleType, payload: bytes, size: int, *, checked: bool = False) -> bytes | None:
    out = np.zeros(size, np.uint8)
    good = variant.decode(payload, out, np.zeros(variant.work_size(size), np.uint8), checked)
    return out.tobytes() if good else None


def blocks() -> Iterator[tuple[bytes, int, int, int]]:
    """Blocks, the bytes of an element, the length of a row, and the speed."""
    for seed, (dtype, size) in enumerate((dtype, size) for dtype in FLOATS for size in (3, 1000, 4099, 70_001)):
        yield floats(dtype, size, seed=seed), WIDTHS[dtype], 0, 1 + seed % 2
    for size in (1 << 18, 1 << 19):  # streams of two blocks are read at once
        yield gaussian(size), 2, 0, 1
        yield gaussian(size + 77), 2, 0, 2
    yield gaussian(1 << 18) + floats("float16", 1 << 17, seed=1), 2, 0, 1  # and codes of more than 6 bits, or of fewer
    yield moments(300, 64, seed=1), 4, 64, 1


def gaussian(size: int) -> bytes:
    """Numbers of bfloat16."""
    wide = np.random.default_rng(size).normal(0, 0.02, size).astype(np.float32)
    return (wide.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def mutants(variants: list[ModuleType], seed: int) -> Iterator[tuple[bytes, int]]:
    """Payloads with a few bytes changed, without end; and the size that each declares."""
    choose = random.Random(seed)
    kept = [data for data in corpus_of("floatzip").values() if len(data) > 5 and data[0] >> 6 == 1]
    made = [encoded(variants[0], *block) for block in blocks()]
    payloads = [payload for payload in (*kept, *made) if payload]
    small = [payload for payload in payloads if len(payload) < 5000]
    while True:
        payload = bytearray(choose.choice(payloads if choose.random() < 0.02 else small))
        size = int.from_bytes(payload[1:5], "little")
        for _ in range(choose.choice((1, 1, 1, 2, 8))):
            at = choose.randrange(len(payload)) if choose.random() < 0.5 else choose.randrange(min(300, len(payload)))
            payload[at] = choose.choice((payload[at] ^ 1 << choose.randrange(8), choose.randrange(256), 0, 255))
        if choose.random() < 0.1:
            del payload[choose.randrange(len(payload)) :]
        yield bytes(payload), size if size <= 1 << 20 else 1000


def check(variants: list[ModuleType], payload: bytes, size: int) -> bool:
    """Whether a payload is decoded, by all alike."""
    first, *others = (decoded(variant, payload, size) for variant in variants)
    assert all(other == first for other in others), payload.hex()
    return first is not None


def test_all_encode_the_same_bytes(variants: list[ModuleType]) -> None:
    for block, *more in blocks():
        first, *others = (encoded(variant, block, *more) for variant in variants)
        assert all(other == first for other in others)
        assert not first or all(decoded(variant, first, len(block)) == block for variant in variants)


def test_all_decode_mutants_alike(variants: list[ModuleType]) -> None:
    results = [check(variants, *mutant) for mutant, _ in zip(mutants(variants, 1), range(3000), strict=False)]
    assert 100 < sum(results) < 2900


@pytest.mark.parametrize("size", [152, 390, 600, 3 * PART, 6 * PART + 2, 200_000])
def test_all_compute_the_same_crc(variants: list[ModuleType], size: int) -> None:
    for more in range(0, 400, 26):
        block = floats("bfloat16", size + more, seed=more)
        payload = encoded(variants[0], block, 2, 0, 1)
        crc = crc32c.crc32c(payload).to_bytes(4, "little")
        for variant in variants:
            assert decoded(variant, payload + crc, len(block), checked=True) == block
            assert decoded(variant, payload + flipped(crc, 0), len(block), checked=True) is None


def test_the_crc_of_anything_after_anything(variants: list[ModuleType]) -> None:
    data = random.Random(3).randbytes(70_000)
    # what is multiplied by 128 and by 256 bits, with three parts behind it
    segments = [2 * size - less for size in (129 * 64 + 3 * PART, 129 * 128 + 3 * PART) for less in (size, 1, 0)]
    for size in (*range(1100), *segments, 3 * PART, 65_537, 69_999):
        part = np.frombuffer(data[:size], np.uint8).copy()  # in memory of its own, which a sanitizer watches
        before = crc32c.crc32c(data[-size % 7 :])
        assert {variant.crc32c(part, before) for variant in variants} <= {None, crc32c.crc32c(part, before)}
        assert crc32c_of(part.data, before) == crc32c.crc32c(part, before)


def test_differences_are_encoded_and_decoded_alike(variants: list[ModuleType]) -> None:
    for seed in range(60):
        base, new, *layout = pair(seed, None if seed % 9 else 30_000)
        payloads = set()
        for variant in variants:
            out = np.empty(2 * len(new) + 100, np.uint8)
            work = np.empty(variant.difference_work_size(len(new)), np.uint8)
            payloads.add(out[: variant.encode_difference(base, new, out, work, *layout)].tobytes())
        assert len(payloads) == 1
        payload = bytearray(payloads.pop())
        payload[random.Random(seed).randrange(len(payload))] ^= seed % 2  # or as it is
        results = set()
        for variant in variants:
            out, work = np.empty(len(new), np.uint8), np.empty(variant.difference_work_size(len(new)), np.uint8)
            results.add(out.tobytes() if variant.decode_difference(base, payload, out, work) else None)
        assert len(results) == 1
        assert seed % 2 or results <= {new, None}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        made = built(Path(folder))
        for number, mutant in zip(count(1), mutants(made, int(sys.argv[2]) if len(sys.argv) > 2 else 2), strict=False):
            check(made, *mutant)
            if number % 100_000 == 0 or number == int(sys.argv[1]):
                print(f"{number} mutants, {len(made)} kernels, no disagreement", flush=True)
            if number == int(sys.argv[1]):
                break
