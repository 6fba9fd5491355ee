"""FloatZip's compiled kernel and numpy's path read each other's payloads, and refuse the same ones alike.

All memory that the kernel is given has exactly the size that it asks for, so that a sanitizer sees one byte too many;
`make sanitize` runs these tests on a kernel that was built with two of them.
"""

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import crc32c
import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from streamxf.codecs.floatzip import kernel as floatzip_kernel
from streamxf.codecs.floatzip.kernel import compiled as kernel
from tests.altered import flipped
from tests.codecs.implementations import IMPLEMENTATIONS, outcome, stored
from tests.floatzip_blocks import FLOATS, Change, by_zstd, changed, changes, floats, shapes
from tests.floatzip_forge import FIXED, LEVELLED, PACKED, RAW, ZSTD, Shape, features, forge, kinds
from tests.fuzz.target import corpus_of, find

if kernel is None:
    pytest.skip("FloatZip's kernel was not built, or is not to be used", allow_module_level=True)

MIB = 1 << 20
BLOCK = 128 * 1024  # bytes of a block of zstd
WIDTHS = {"float8_e4m3fn": 1, "float8_e5m2": 1, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
# around the block, the groups of 64, what is handled at a time, rows of samples, blocks of zstd, a packed plane of them
EDGES = (
    *(0, 1, 2, 3, 63, 64, 65, 255, 256, 257, 2047, 2048, 2049, 2064),
    *(32 * 64 - 1, 32 * 64, BLOCK - 1, BLOCK, BLOCK + 1),
)


def exactly(data: bytes) -> np.ndarray:
    """The bytes in memory of just their size, which a sanitizer watches."""
    return np.frombuffer(data, np.uint8).copy()


def kernel_encodes(block: bytes, width: int, row: int = 0, speed: int = 1) -> bytes | None:
    """None for a block that is left to the reference or best stored as it is."""
    out = np.empty(kernel.encode_bound(len(block)), np.uint8)
    size = kernel.encode(exactly(block), out, np.empty(kernel.work_size(len(block)), np.uint8), width, row, speed)
    assert size <= len(block)
    return out[:size].tobytes() if size > 0 else None


def kernel_decodes(payload: bytes, size: int) -> bytes | None:
    out = np.empty(size, np.uint8)
    return out.tobytes() if kernel.decode(exactly(payload), out, np.empty(kernel.work_size(size), np.uint8)) else None


def kernel_decodes_checked(stored: bytes, size: int) -> bytes | None:
    out, work = np.empty(size, np.uint8), np.empty(kernel.work_size(size), np.uint8)
    return out.tobytes() if kernel.decode(exactly(stored), out, work, True) else None


def kernel_compresses(data: bytes) -> bytes:
    out = np.empty(kernel.encode_bound(len(data)), np.uint8)
    return out[: kernel.compress(exactly(data), out)].tobytes()


def kernel_decompresses(frame: bytes, size: int) -> bytes | None:
    out = np.empty(size, np.uint8)
    return out.tobytes() if kernel.decompress(exactly(frame), out) else None


def agreed(payload: bytes, limit: int) -> bytes | str:
    """What both implementations make of a payload, and the kernel alone, which may leave it to the other one."""
    compiled, reference = (outcome(payload, limit, each) for each in IMPLEMENTATIONS)
    assert compiled == reference
    declared = int.from_bytes(payload[1:5], "little") if len(payload) >= 5 and payload[0] else limit
    assert kernel_decodes(payload, min(declared, limit)) in (None, reference)
    return reference


def check(block: bytes, dtype: str, row: int | None = None, speed: int = 1) -> None:
    """Each implementation reads what both have written."""
    payloads = [stored(block, dtype, row, each, speed) for each in IMPLEMENTATIONS]
    own = kernel_encodes(block, WIDTHS[dtype], row or 0, speed)
    if own is not None:
        assert own == payloads[0]
        assert kernel_decodes(own, len(block)) == block
    for payload in payloads:
        assert agreed(payload, len(block)) == block
        if block:
            assert isinstance(agreed(payload, len(block) - 1), str)


def numbers(kind: str, dtype: str, count: int, seed: int) -> bytes:
    """Elements of a dtype, such as are met in checkpoints."""
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 1 if WIDTHS[dtype] == 1 else 0.02, count)
    if kind == "outliers":
        values[rng.random(count) < 0.004] *= 1e4
    elif kind == "sparse":
        values[rng.random(count) < 0.9] = 0
    elif kind == "constant":
        values[:] = 1.5
    elif kind == "scaled":
        values *= np.exp(rng.normal(0, 2, count // 64 + 1))[np.arange(count) // 64]
    tensor = torch.from_numpy(values).to(getattr(torch, dtype))
    return rng.bytes(tensor.nbytes) if kind == "noise" else tensor.view(torch.uint8).numpy().tobytes()


KINDS = ("gaussian", "outliers", "sparse", "constant", "scaled", "noise")


# -- blocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", WIDTHS)
def test_sizes_at_every_edge(dtype: str, kind: str) -> None:
    data = numbers(kind, dtype, BLOCK + 1, 1)
    for size in EDGES:
        check(data[:size], dtype)
        check(data[: size * WIDTHS[dtype]], dtype, 64)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("row", [64, 65, 128, 1000, 4096])
def test_moments_whose_rows_and_columns_have_scales(dtype: str, row: int) -> None:
    rng = np.random.default_rng(row)
    rows = max(40, 60_000 // row)
    scales = np.exp(rng.normal(0, 2, (rows, 1)) + rng.normal(0, 2, (1, row)))
    values = torch.from_numpy(rng.normal(0, 1, (rows, row)) * scales).to(getattr(torch, dtype))
    block = values.view(torch.uint8).numpy().tobytes()
    check(block, dtype, row)
    check(block[:-1], dtype, row)
    if dtype != "float64":  # whose eleven bits of exponent do not end with a byte
        assert "levelled" in features(kernel_encodes(block, WIDTHS[dtype], row) or b"\0")


@pytest.mark.parametrize("row", [64, 192, 1000])
@pytest.mark.parametrize("scaled", ["rows", "columns", "both"])
def test_scales_that_differ_a_little_are_taken_off(scaled: str, row: int) -> None:
    """Of a layer's channels, for example. It has to be worth a level for each group, or for each column."""
    rng = np.random.default_rng(row)
    shapes = {"rows": [(300, 1)], "columns": [(1, row)], "both": [(300, 1), (1, row)]}[scaled]
    values = rng.normal(0, 0.02, (300, row)).astype(np.float32)
    plain = kernel_encodes(values.tobytes(), 4, row)
    for shape in shapes:
        values *= np.exp2(rng.integers(0, 3, shape)).astype(np.float32)
    block = values.tobytes()
    check(block, "float32", row)
    levelled, without = kernel_encodes(block, 4, row), kernel_encodes(rng.permutation(values.ravel()).tobytes(), 4, row)
    assert plain
    assert levelled
    assert without
    assert "levelled" in features(levelled)
    assert "levelled" not in features(plain) | features(without)
    assert len(levelled) < len(without) - 0.3 * (len(without) - len(plain))


@pytest.mark.parametrize(
    ("dtype", "crowd"), [("bfloat16", 9000), ("bfloat16", 8000), ("float32", 5000), ("float32", 3)]
)
def test_exceptions_that_the_sample_does_not_meet(dtype: str, crowd: int) -> None:
    """One element in 64 may be an exception; where there are more, splitting has to start over."""
    width, block = WIDTHS[dtype], bytearray(numbers("gaussian", dtype, MIB // WIDTHS[dtype], 5))
    for place in range(1000, 1000 + crowd):  # the first of 16 runs ends before, the next begins after
        block[place * width + width - 1] = 1 + place % 3
    check(bytes(block), dtype)
    coded = features(kernel_encodes(bytes(block), width) or b"\0")
    assert ("packed" in coded) == (crowd <= MIB // width // 64)


@pytest.mark.parametrize("dtype", WIDTHS)
def test_the_kernel_does_what_it_is_for(dtype: str) -> None:
    """It takes weights in both directions, and they get as small as numpy makes them."""
    for kind, more in (("gaussian", 0.003), ("outliers", 0.02), ("scaled", 0.003)):
        block = numbers(kind, dtype, MIB // WIDTHS[dtype], 2)
        own, reference = kernel_encodes(block, WIDTHS[dtype]), stored(block, dtype, None, "numpy")
        assert own is not None
        assert len(own) < (1 + more) * len(reference)
        assert kernel_decodes(own, MIB) == block


# -- payloads that no encoder writes, and damage -----------------------------------------------------------------------

small = st.one_of(
    st.binary(min_size=15, max_size=200),
    st.builds(floats, st.sampled_from(sorted(FLOATS)), st.integers(15, 900), st.integers(0, 9)),
)
PAYLOADS = [
    stored(numbers(kind, dtype, 40_000 // WIDTHS[dtype], 3) + b"\1", dtype, 128, implementation)
    for kind in ("gaussian", "outliers", "scaled", "sparse")
    for dtype in WIDTHS
    for implementation in IMPLEMENTATIONS
]


@given(small, shapes(), st.integers(0, 15))
def test_every_layout_that_the_format_allows(block: bytes, shape: Shape, idle: int) -> None:
    payload = forge(block, shape, idle)
    assert agreed(payload, len(block)) == block
    assert isinstance(agreed(payload, len(block) - 1), str)
    payload = forge(block, shape, idle, frame=kernel_compresses)
    assert agreed(payload, len(block)) == block
    columns = shape.period if (LEVELLED, 1) in shape.planes else 0
    elements = (len(block) - shape.phase) // shape.width
    assert kernel_decodes(payload, len(block)) == (block if columns <= elements else None)


@given(small, shapes(), changes)
def test_damage_to_payloads_that_the_codec_never_makes(block: bytes, shape: Shape, listed: list[Change]) -> None:
    agreed(changed(forge(block, shape), listed), 1000)
    agreed(changed(forge(block, shape, frame=kernel_compresses), listed), 1000)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_exceptions_out_of_place(width: int) -> None:
    """What decoding checks of a packed plane while it takes it apart, 2048 elements at a time."""
    count, places = 5001, [7, 2000, 2047, 2048, 4096, 5000]
    plane = bytearray([100 + k % 16 for k in range(count)])
    for place in places:
        plane[place] = 9
    block = b"".join(bytes(width - 1) + bytes([value]) for value in plane)
    shape = Shape(width, False, 0, [*[(RAW, 1)] * (width - 1), (PACKED, 1)], 100)
    payload = forge(block, shape, frame=kernel_compresses)
    assert agreed(payload, len(block)) == block
    first = payload.index(places[0].to_bytes(4, "little") + places[1].to_bytes(4, "little"))
    for number, place in enumerate(places):
        for other in {0, 6, 7, 8, 2000, 2046, 2047, 2048, 2049, 4095, 4096, 4097, 5000, 5001, 8192, 2**32 - 1} - {
            place
        }:
            damaged = bytearray(payload)
            damaged[first + 4 * number : first + 4 * number + 4] = other.to_bytes(4, "little")
            listed = [*places[:number], other, *places[number + 1 :]]
            rises = all(a < b for a, b in zip(listed, [*listed[1:], count], strict=True))
            assert isinstance(agreed(bytes(damaged), len(block)), bytes) == rises
            assert (kernel_decodes(bytes(damaged), len(block)) is not None) == rises
    for listed in (0, 5, 7, 100, 300, 500, 700, 1000, 2000, 2**31, 2**32 - 1):
        damaged = bytearray(payload)
        damaged[first - 4 : first] = listed.to_bytes(4, "little")
        assert isinstance(agreed(bytes(damaged), len(block)), str), listed
        assert kernel_decodes(bytes(damaged), len(block)) is None
    odd = forge(block, shape, frame=lambda pairs: kernel_compresses(pairs[:-1] + bytes([pairs[-1] | 16])))
    assert isinstance(agreed(odd, len(block)), str)  # four bits too many


@pytest.mark.parametrize("period", [1, 3, 64, 100, 1 << 16])
@pytest.mark.parametrize("width", [2, 4, 8])
def test_more_columns_than_elements(width: int, period: int) -> None:
    """They need more memory than the block has bytes."""
    block = floats("float32", 8 * width + 5, 1)
    for levels in (b"\1", b"\1\2\3", bytes(range(256))):
        shape = Shape(width, True, 0, [(LEVELLED, 1)] * width, 100, levels, period)
        assert agreed(forge(block, shape, frame=kernel_compresses), len(block)) == block


def test_levels_that_are_longer_than_their_plane() -> None:
    block = floats("float32", 4096, 1)
    payload = forge(block, Shape(2, False, 0, [(LEVELLED, 1)] * 2, 100, b"\1\2", 64), frame=kernel_compresses)
    assert agreed(payload, len(block)) == block
    at = payload.index((64).to_bytes(4, "little")) + 4
    stored = int.from_bytes(payload[at : at + 4], "little")
    for other in (0, stored - 1, stored + 1, stored + 100, len(payload), 2**32 - 1):
        damaged = payload[:at] + other.to_bytes(4, "little") + payload[at + 4 :]
        assert isinstance(agreed(damaged, len(block)), str), other
        assert kernel_decodes(damaged, len(block)) is None
    size = int.from_bytes(payload[11:15], "little")  # of the second plane, which the payload ends with
    for left in range(size):
        damaged = payload[:11] + left.to_bytes(4, "little") + payload[15 : len(payload) - size + left]
        assert kernel_decodes(damaged, len(block)) is None


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_every_kind_of_plane_that_does_not_exist(width: int) -> None:
    """Among them what no encoder writes: wide planes that are compressed, and bytes as they are."""
    block, levels = floats("float64", 96, 1), b"\1\2"
    known = {coding | (lane // 2) << 2 for coding, lane in kinds(width)}
    assert known == ({1, 2} if width == 1 else {*range(6)} if width == 2 else {*range(6), 8})
    for kind in range(256):
        coding, lane = (FIXED, 1) if kind == FIXED else (kind & 3, min(1 << (kind >> 2), width))
        rest = [(ZSTD, 1)] * (width - lane)
        payload = bytearray(forge(block, Shape(width, False, 0, [(coding, lane), *rest], 100, levels)))
        payload[5] = kind
        assert (agreed(bytes(payload), 100) == block) == (kind in known), kind


@pytest.mark.parametrize("seed", range(20))
def test_what_the_fuzzer_makes_of_payloads(seed: int) -> None:
    target, choose = find("floatzip"), random.Random(seed)
    known = [*target.seeds(), *corpus_of("floatzip").values(), *PAYLOADS[:4]]

    def havoc(data: bytes) -> bytes:
        at = choose.randint(0, len(data))
        return data[:at] + choose.randbytes(choose.randint(0, 3)) + data[at + choose.randint(0, 3) :]

    for _ in range(100):
        agreed(target.mutate(choose.choice(known), choose, havoc), MIB)


# -- the Huffman coder -------------------------------------------------------------------------------------------------


def drawn(kind: int, size: int, seed: int) -> bytes:
    """Bytes of very different entropies."""
    rng = np.random.default_rng(seed)
    values = [
        lambda: rng.integers(0, 256, size),
        lambda: np.clip(rng.normal(100, 2, size), 0, 255),
        lambda: (rng.random(size) < 0.01) * 7,
        lambda: np.minimum(rng.geometric(0.5, size), 255),
        lambda: np.full(size, 9),
        lambda: (np.abs(rng.standard_cauchy(size)) * 3).clip(0, 255),
        lambda: rng.integers(0, rng.integers(1, 257), size),
        lambda: np.repeat(np.arange(256), 1 << np.minimum(np.arange(256) // 8, 12))[-size or 1 :][:size],
    ][kind]()
    return np.asarray(values).astype(np.uint8).tobytes()


sizes = st.one_of(
    st.integers(0, 3000),
    st.sampled_from([255, 256, 257, 1023, 1024, 16383, 16384, 65791, 65792, BLOCK - 1, BLOCK, BLOCK + 1, 300_000]),
)
draws = st.builds(drawn, st.integers(0, 7), sizes, st.integers(0, 2**32))


@given(draws)
def test_its_frames_are_zstd_frames(data: bytes) -> None:
    frame = kernel_compresses(data)
    assert kernel_decompresses(frame, len(data)) == data
    assert zstandard.ZstdDecompressor().decompressobj().decompress(frame) == data
    assert zstandard.get_frame_parameters(frame).content_size == len(data)
    if data:
        assert kernel_decompresses(frame, len(data) - 1) is None
    assert kernel_decompresses(frame, len(data) + 1) is None


@pytest.mark.parametrize("kind", range(8))
def test_its_frames_are_near_the_entropy(kind: int) -> None:
    data = drawn(kind, 500_000, 1)
    shares = np.bincount(np.frombuffer(data, np.uint8)) / len(data)
    entropy = -sum(share * np.log2(share) for share in shares if share) * len(data) / 8
    # a code is a bit at least, and zstd's codes have eleven at most
    assert len(kernel_compresses(data)) <= min(max(1.04 * entropy, len(data) / 8), len(data)) + 200


@given(draws, st.sampled_from([-7, -1, 1, 3]), changes)
def test_frames_of_zstd_whole_and_damaged(data: bytes, level: int, listed: list[Change]) -> None:
    frame = zstandard.ZstdCompressor(level=level, write_content_size=True).compress(data)
    assert kernel_decompresses(frame, len(data)) in (None, data)
    damaged = changed(frame, listed)
    if (found := kernel_decompresses(damaged, len(data))) is not None and data:
        assert by_zstd(damaged, len(data)) == found


@given(draws, changes)
def test_what_it_takes_zstd_takes(data: bytes, listed: list[Change]) -> None:
    damaged = changed(kernel_compresses(data), listed)
    if (found := kernel_decompresses(damaged, len(data))) is not None and data:
        assert by_zstd(damaged, len(data)) == found


@pytest.mark.parametrize("kind", [0, 1], ids=["stored", "a run"])
@pytest.mark.parametrize("lengths", [(60, 39), (60, 40), (60, 41), (60, 100), (100, 1), (99, 0)])
def test_blocks_of_a_frame_that_are_longer_together(lengths: tuple[int, int], kind: int) -> None:
    frame, made = bytes.fromhex("28b52ffda0") + (100).to_bytes(4, "little"), b""
    for number, length in enumerate(lengths):
        frame += (length << 3 | kind << 1 | number).to_bytes(3, "little") + (b"x" * length if kind == 0 else b"x")
        made += b"x" * length
    assert kernel_decompresses(frame, 100) == (made if len(made) == 100 else None)
    assert kernel_decompresses(frame[:-1], 100) is None


@pytest.mark.parametrize("size", [20, 300, 3000])
def test_every_byte_of_a_frame_has_another_value(size: int) -> None:
    """Among them heads of literals, descriptions of trees, and lengths of streams."""
    data = drawn(3, size, 4)
    for frame in (kernel_compresses(data), zstandard.ZstdCompressor(level=-7).compress(data)):
        for place in range(min(len(frame), 60)):
            for value in range(256):
                damaged = frame[:place] + bytes([value]) + frame[place + 1 :]
                if (found := kernel_decompresses(damaged, size)) is not None:
                    assert by_zstd(damaged, size) == found


# -- the interpreter's lock --------------------------------------------------------------------------------------------


@pytest.fixture
def unhurried() -> Iterator[None]:
    """No thread has to give up the lock before it wants to."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


def runs_beside(call: Callable[[], object]) -> bool:
    """Whether this thread has run before another one was done with `call`; it may not have had a CPU in time."""
    done = False

    def work() -> None:
        nonlocal done
        call()
        done = True

    thread = threading.Thread(target=work)
    thread.start()
    beside = not done
    thread.join()
    return beside


def test_others_run_meanwhile(unhurried: None) -> None:
    block = np.tile(exactly(numbers("gaussian", "bfloat16", MIB, 1)), 16)
    out, work = bytearray(kernel.encode_bound(len(block))), bytearray(kernel.work_size(len(block)))
    payload = out[: kernel.encode(block, out, work, 2, 0)]
    target = bytearray(len(block))
    assert any(runs_beside(lambda: kernel.encode(block, out, work, 2, 0)) for _ in range(20))
    assert any(runs_beside(lambda: kernel.decode(payload, target, work)) for _ in range(20))
    assert target == block.tobytes()
    assert not any(runs_beside(lambda: target.count(b"no such bytes")) for _ in range(5))


@contextmanager
def alternating(memory: np.ndarray, *contents: np.ndarray) -> Iterator[None]:
    """Another thread puts one content after the other into `memory`, again and again, and at the end the last one."""
    done = threading.Event()

    def alternate() -> None:
        while not done.is_set():
            for content in contents:
                memory[:] = content

    thread = threading.Thread(target=alternate)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("dtype", WIDTHS)
def test_a_block_that_changes_meanwhile(dtype: str) -> None:
    """Training goes on while blocks are encoded. A payload may then be worthless, but is no longer than the block."""
    calm = exactly(numbers("gaussian", dtype, 2 * BLOCK // WIDTHS[dtype], 1))
    wild = np.concatenate([exactly(np.random.default_rng(1).bytes(BLOCK)), np.zeros(BLOCK, np.uint8)])
    block, out = calm.copy(), np.empty(kernel.encode_bound(len(calm)), np.uint8)
    work = np.empty(kernel.work_size(len(calm)), np.uint8)
    with alternating(block, wild, calm):
        for _ in range(100):
            assert -1 <= kernel.encode(block, out, work, WIDTHS[dtype], 0) <= len(block)
    assert kernel_encodes(block.tobytes(), WIDTHS[dtype]) == kernel_encodes(calm.tobytes(), WIDTHS[dtype])


@pytest.mark.parametrize("place", [10, 100])
def test_a_frame_that_changes_meanwhile(place: int) -> None:
    """Without the ends of its streams, which a sanitizer sees if they are looked at twice, or with another tree."""
    data = drawn(1, 700, 4)
    intact = exactly(kernel_compresses(data))
    damaged, frame, out = intact.copy(), intact.copy(), np.empty(len(data), np.uint8)
    damaged[place:-1] ^= intact[place:-1] if place == 100 else 255
    with alternating(frame, damaged, intact):
        for _ in range(50_000):
            kernel.decompress(frame, out)
    assert kernel_decompresses(frame.tobytes(), len(data)) == data


# -- what it does not take ---------------------------------------------------------------------------------------------


def test_memory_that_is_too_small_is_refused() -> None:
    block = exactly(bytes(100))
    bound, work = kernel.encode_bound(100), kernel.work_size(100)
    for out, memory in ((bound - 1, work), (bound, work - 1), (0, 0)):
        with pytest.raises(ValueError, match="too small"):
            kernel.encode(block, bytearray(out), bytearray(memory), 2, 0)
    with pytest.raises(ValueError, match="too small"):
        kernel.decode(block, bytearray(100), bytearray(work - 1))
    with pytest.raises(ValueError, match="too small"):
        kernel.compress(block, bytearray(bound - 1))


def test_planes_beyond_the_largest_window_are_left_to_the_reference() -> None:
    """A frame of one segment has its content for a window, and the format allows 128 MiB."""
    size = (1 << 27) + 1
    run = (BLOCK << 3 | 2).to_bytes(3, "little") + b"\7"
    frame = bytes.fromhex("28b52ffda0") + size.to_bytes(4, "little") + run * (size // BLOCK) + bytes.fromhex("0b000007")
    assert by_zstd(frame, size) is not None
    payload = b"\x40" + size.to_bytes(4, "little") + b"\1" + len(frame).to_bytes(4, "little") + bytes(6) + frame
    first, second = (str(outcome(payload, size, each)[:100]) for each in IMPLEMENTATIONS)
    assert first == second
    assert "window" in first
    assert floatzip_kernel.encode_bound(size) is None
    assert floatzip_kernel.encode_bound(size - 1) is not None
    large, small = np.empty(size, np.uint8), bytearray(10)
    for call in (
        lambda: kernel.encode(large, small, small, 2, 0),
        lambda: kernel.decode(payload, large, small),
        lambda: kernel.compress(large, small),
        lambda: kernel.decompress(frame, large),
    ):
        with pytest.raises(ValueError, match="128 MiB"):
            call()


@pytest.mark.parametrize(("width", "row"), [(0, 0), (3, 0), (16, 0), (-1, 0), (2, -1)])
def test_elements_of_an_impossible_size_are_refused(width: int, row: int) -> None:
    with pytest.raises(ValueError, match="width"):
        kernel.encode(bytes(100), bytearray(kernel.encode_bound(100)), bytearray(kernel.work_size(100)), width, row)


def test_memory_that_cannot_be_written_is_refused() -> None:
    with pytest.raises((TypeError, BufferError)):
        kernel.decode(bytes(10), bytes(100), bytearray(kernel.work_size(100)))
    with pytest.raises((TypeError, BufferError)):
        kernel.decode(bytes(10), memoryview(bytearray(200))[::2], bytearray(kernel.work_size(100)))


def test_the_memory_it_asks_for_is_in_proportion() -> None:
    for size in (0, 1, 1000, MIB, 16 * MIB):
        assert size <= kernel.encode_bound(size) <= 1.125 * size + 70_000
        assert kernel.work_size(size) <= 3 * size + 300_000
    for call in (kernel.encode_bound, kernel.work_size):
        with pytest.raises(OverflowError):
            call(-1)


# -- with the CRC behind the payload -----------------------------------------------------------------------------------

# the CRC is computed over three parts at once, then over words, then over bytes
PART = 4096


@pytest.mark.parametrize("size", [600, 5000, 3 * PART, 6 * PART + 2, 40_000])
def test_the_crc_of_a_payload_is_compared_whatever_its_length(size: int) -> None:
    lengths = set()
    for more in range(0, 12, 2):
        block = floats("bfloat16", size + more, seed=more)
        payload = kernel_encodes(block, 2)
        assert payload is not None
        lengths.add(len(payload) % 8)
        crc = crc32c.crc32c(payload)
        assert kernel_decodes_checked(payload + crc.to_bytes(4, "little"), len(block)) == block
        for bit in range(0, 32, 5):
            wrong = (crc ^ 1 << bit).to_bytes(4, "little")
            assert kernel_decodes_checked(payload + wrong, len(block)) is None
        for at in random.Random(more).sample(range(len(payload)), 6):
            assert kernel_decodes_checked(flipped(payload, at) + crc.to_bytes(4, "little"), len(block)) is None
    assert len(lengths) > 2


def test_what_is_too_short_for_a_crc_is_refused() -> None:
    for size in range(6):
        assert kernel_decodes_checked(bytes(size), 100) is None
