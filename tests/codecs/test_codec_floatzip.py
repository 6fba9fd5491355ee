"""FloatZip: every bit pattern of every dtype comes back, and floats shrink to what their exponents are worth."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import streamxf
from streamxf.codecs.floatzip.planes import Workspace, level_into, pack_into, unlevel, unpack
from streamxf.codecs.floatzip.sampling import SMALL_BYTES, choose
from streamxf.format.container import stage_limit
from streamxf.testing import CodecConformance
from tests.altered import bit_flips
from tests.codecs.blocks import info

pytestmark = pytest.mark.usefixtures("each_implementation")

MIB = 1 << 20
DTYPES = [
    *("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
    *("complex64", "complex128", "int8", "int64", "uint8", "bool", None),
]
# what IEEE numbers have at their edges: zeros of both signs, infinities, quiet and signalling NaNs, denormals
SPECIAL = {
    "bfloat16": [0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F81, 0x0001, 0x807F, 0x7F7F],
    "float16": [0x0000, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01, 0x0001, 0x83FF, 0x7BFF],
    "float32": [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x00000001, 0x807FFFFF],
    "float64": [0x0, 0x8000000000000000, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0x1],
}
WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
SHARE = {"bfloat16": 0.668, "float16": 0.852, "float32": 0.832}


class TestFloatZip(CodecConformance):
    examples = 20
    codec = streamxf.FloatZip()


class TestSpeedTwo(CodecConformance):
    examples = 5
    codec = streamxf.FloatZip(speed=2)


def stored(block: bytes, dtype: str | None, row: int | None = None) -> bytes:
    return bytes(streamxf.FloatZip().encode(memoryview(block), info(stage_limit(MIB), dtype, row)))


def restored(data: bytes, size: int) -> bytes:
    return bytes(streamxf.FloatZip().decode(memoryview(data), info(size)))


def check(block: bytes, dtype: str | None) -> bytes:
    data = stored(block, dtype)
    assert restored(data, len(block)) == block
    assert len(data) <= len(block) + 1
    return data


def gaussian(dtype: str, size: int = MIB) -> bytes:
    generator = torch.Generator().manual_seed(1)
    kind = getattr(torch, dtype)
    values = torch.empty(size // kind.itemsize, dtype=torch.float64).normal_(0, 0.02, generator=generator)
    return values.to(kind).view(torch.uint8).numpy().tobytes()


# -- every byte comes back ---------------------------------------------------------------------------------------------


@given(st.binary(max_size=5000), st.sampled_from(DTYPES), st.integers(0, 400))
def test_any_bytes_under_any_dtype_come_back(block: bytes, dtype: str | None, repeat: int) -> None:
    check((block * (1 + repeat))[: 2 * MIB], dtype)


@given(st.data(), st.sampled_from(sorted(SPECIAL)), st.integers(0, 7), st.integers(0, 7))
def test_special_numbers_come_back_bit_for_bit(data: st.DataObject, dtype: str, before: int, after: int) -> None:
    width = WIDTHS[dtype]
    patterns = st.one_of(st.sampled_from(SPECIAL[dtype]), st.integers(0, 2 ** (8 * width) - 1))
    numbers = data.draw(st.lists(patterns, max_size=300))
    block = bytes(before) + b"".join(number.to_bytes(width, "little") for number in numbers) + b"\xff" * after
    check(block, dtype)
    check(block, None)


@settings(max_examples=60)
@given(st.data(), st.sampled_from([*sorted(SPECIAL), "float8_e4m3fn", "int64"]), st.integers(0, 2**32))
def test_any_cut_of_a_tensor_comes_back_and_shrinks(data: st.DataObject, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tensor = torch.from_numpy(rng.normal(0, 10.0 ** rng.integers(-6, 3), 40_000)).to(getattr(torch, dtype))
    raw = tensor.view(torch.uint8).numpy().tobytes()
    start = data.draw(st.integers(0, len(raw) // 2))
    block = raw[start : start + data.draw(st.integers(0, len(raw) // 2))]
    for told in (dtype, None, "float32"):
        check(block, told)


def test_every_pattern_of_sixteen_bits_comes_back() -> None:
    block = np.arange(1 << 16, dtype="<u2").tobytes()
    for dtype in ("bfloat16", "float16", None):
        check(block, dtype)


@settings(max_examples=60)
@given(st.integers(0, 255), st.integers(0, 40), st.integers(100, 70_000), st.integers(0, 2**32))
def test_exponents_outside_of_the_sixteen_come_back(base: int, outside: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    exponents = (base + rng.integers(0, 16, count)).astype(np.uint8)
    exponents[rng.integers(0, count, outside)] = rng.integers(0, 256, outside)
    rotated = exponents.astype("<u2") << 8 | rng.integers(0, 256, count).astype("<u2")
    elements = (rotated >> 1 | rotated << 15).astype("<u2")
    for extra in (b"", b"\x01"):
        check(elements.tobytes() + extra, "bfloat16")


# -- and what can shrink does ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", sorted(SHARE))
@pytest.mark.parametrize("told", [True, False])
def test_gaussian_weights_shrink_to_their_entropy(dtype: str, told: bool) -> None:
    block = gaussian(dtype)
    assert len(check(block, dtype if told else None)) <= SHARE[dtype] * len(block)


def entropy(block: bytes) -> float:
    """In bytes, of order 0."""
    counts = np.bincount(np.frombuffer(block, np.uint8))
    return -float(np.sum(counts[counts > 0] * np.log2(counts[counts > 0] / len(block)))) / 8


def four_bits(size: int = MIB) -> tuple[bytes, bytes]:
    """Gaussian weights in MXFP4: two elements to a byte, and a power of two for 32 of them."""
    rng = np.random.default_rng(1)
    values = rng.normal(0, 0.02, (size // 16, 32)) * np.exp(rng.normal(0, 0.3, (size // 16, 1)))
    scales = np.floor(np.log2(np.abs(values).max(axis=1, keepdims=True))) - 2
    bounds = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5]
    codes = np.searchsorted(bounds, np.abs(values) / 2**scales).astype(np.uint8) | (values < 0).astype(np.uint8) << 3
    return (codes[:, ::2] | codes[:, 1::2] << 4).tobytes(), (scales + 127).astype(np.uint8).tobytes()


@pytest.mark.parametrize(("dtype", "largest"), [("float8_e4m3fn", 448), ("float8_e5m2", 57344)])
@pytest.mark.parametrize("told", [True, False])
def test_eight_bit_weights_shrink_to_the_entropy_of_their_bytes(dtype: str, largest: int, told: bool) -> None:
    values = torch.from_numpy(np.random.default_rng(1).normal(0, 0.02, (1024, 1024)))
    scaled = values / values.abs().amax(dim=1, keepdim=True) * largest
    block = scaled.to(getattr(torch, dtype)).view(torch.uint8).numpy().tobytes()
    # codes of eleven bits at most leave rare bytes a larger share than they have
    assert len(check(block, dtype if told else "uint8")) <= 1.018 * entropy(block)


@pytest.mark.parametrize("told", ["float4_e2m1fn_x2", "uint8", "int32", None])
def test_four_bit_weights_shrink_as_far_as_codes_allow(told: str | None) -> None:
    values, _ = four_bits()
    compiled = streamxf.FloatZip.implementation() == "compiled"
    # zstd itself leaves alone what gains less than a 64th
    assert len(check(values, told)) <= (1.006 * entropy(values) if compiled else MIB + 1)


@pytest.mark.parametrize("told", ["float8_e8m0fnu", "uint8", None])
def test_scales_of_blocks_are_packed(told: str | None) -> None:
    """Most are one of two or three values: a code of their own would be a whole bit each."""
    _, scales = four_bits(4 * MIB)
    assert len(check(scales, told)) <= 1.04 * entropy(scales)


def test_runs_of_scales_are_left_to_matches() -> None:
    rows = np.random.default_rng(1).integers(118, 124, 256).astype(np.uint8)
    assert len(check(np.repeat(rows, 512).tobytes(), "float8_e8m0fnu")) < 2000


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("phase", range(1, 8))
def test_the_place_of_the_first_element_is_found(dtype: str, phase: int) -> None:
    raw = gaussian(dtype)
    aligned = len(check(raw, None))
    assert len(check(b"\x00\x01\x02\x03\x04\x05\x06\x07"[:phase] + raw, None)) <= aligned * 1.002


@pytest.mark.parametrize("dtype", [*DTYPES])
def test_constants_collapse(dtype: str | None) -> None:
    assert len(check(bytes(MIB), dtype)) < MIB / 500
    assert len(check(b"\x3f\x80\x00\x00" * (MIB // 4), dtype)) < MIB / 500


def test_rows_of_zeros_cost_next_to_nothing() -> None:
    for dtype, share in (("bfloat16", 0.668), ("float32", 0.832)):
        weights = np.frombuffer(gaussian(dtype), np.uint8).reshape(-1, 4096).copy()
        weights[1::2] = 0
        assert len(check(weights.tobytes(), dtype)) < (share / 2 + 0.02) * MIB


def test_floats_that_were_widened_shrink_to_what_they_hold() -> None:
    narrow = torch.frombuffer(bytearray(gaussian("bfloat16")), dtype=torch.bfloat16)
    wide = narrow[: MIB // 4].to(torch.float32).view(torch.uint8).numpy().tobytes()
    assert len(check(wide, "float32")) < 0.668 / 2 * MIB + 4096


def test_text_and_whole_numbers_shrink_as_well_as_zstandard_makes_them() -> None:
    text = (b"".join(b"item %d of the list\n" % number for number in range(60_000)))[:MIB]
    plain = streamxf.encode(text, "zstd")
    assert len(check(text, None)) < 1.05 * len(plain)
    program = Path(np.__file__).with_name("_core").rglob("*.so")
    code = max(program, key=lambda path: path.stat().st_size).read_bytes()[:MIB]
    assert len(check(code, None)) < 1.02 * len(streamxf.encode(code, "zstd"))
    tokens = np.random.default_rng(1).integers(0, 50_000, MIB // 8).tobytes()
    assert len(check(tokens, "int64")) < 0.26 * MIB


def test_up_to_4_kib_compressing_is_tried_without_a_sample() -> None:
    noise = np.random.default_rng(3).integers(0, 256, SMALL_BYTES + 1, "u1")
    assert choose(noise[:-1], None) is not None
    assert choose(noise, None) is None


def test_floats_of_a_byte_are_not_taken_for_wider_ones() -> None:
    wide = np.random.default_rng(4).normal(0, 1, MIB // 2).astype(np.float16).view("u1")
    detected, known = choose(wide, None), choose(wide, "float8_e5m2")
    assert detected is not None
    assert detected.layout.width > 1
    assert known is None or known.layout.width == 1


def test_whole_blocks_are_decoded_in_one_call_where_the_checksum_is_known() -> None:
    class Own(streamxf.Checksum):
        """Which may check otherwise."""

    class OwnFloats(streamxf.FloatZip):
        """Which may decode otherwise."""

    assert all(streamxf.FloatZip().whole_decoder(checksum) for checksum in (None, streamxf.Checksum()))
    assert not streamxf.FloatZip().whole_decoder(Own())
    assert not OwnFloats().whole_decoder(None)


def test_small_blocks_are_decoded_in_one_call_unless_something_is_wrong() -> None:
    """Then the codec itself says what it is."""
    whole = streamxf.FloatZip().whole_decoder(None)
    assert whole is not None
    text = b"a pickle of a few objects, " * 20
    good = stored(text, None)
    out = bytearray(len(text))
    assert whole(memoryview(good), memoryview(out))
    assert out == text
    assert not whole(memoryview(good), memoryview(bytearray(len(text) + 1)))
    for bad in bit_flips(good):
        if whole(memoryview(bad), memoryview(out)):
            assert out == restored(bad, len(text))
    checked = streamxf.FloatZip().whole_decoder(streamxf.Checksum())
    assert checked is not None
    assert not checked(memoryview(good), memoryview(out))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_of_sines_are_left_to_matches(dtype: type) -> None:
    """Each row is another one once more, with other signs."""
    steps = np.outer(np.arange(128), np.arange(512)) * (2 * np.pi / 512)
    rows = np.cos(steps).astype(dtype)
    block = np.concatenate([rows, rows * np.where(np.arange(512) % 2, -1, 1).astype(dtype)]).tobytes()
    assert len(check(block, np.dtype(dtype).name)) < 0.6 * len(block)


def test_few_numbers_that_repeat_are_left_to_matches() -> None:
    block = np.tile(np.random.default_rng(1).standard_normal(40).astype(np.float32), 8).tobytes()
    assert len(check(block, "float32")) < len(block) / 5


def test_noise_grows_by_one_byte() -> None:
    noise = np.random.default_rng(1).bytes(MIB)
    for dtype in DTYPES:
        assert len(check(noise, dtype)) == MIB + 1


def moments(rows: int, columns: int, scale: float = 1.5) -> torch.Tensor:
    """Numbers such as an optimizer keeps: every row and every column has a scale of its own."""
    rng = np.random.default_rng(1)
    scales = np.exp(rng.normal(0, scale, (rows, 1)) + rng.normal(0, scale, (1, columns)))
    return torch.from_numpy((rng.normal(0, 1, (rows, columns)) * scales).astype(np.float32))


@pytest.mark.parametrize("columns", [64, 100, 256, 1000])
def test_scales_of_rows_and_columns_are_taken_off(columns: int) -> None:
    block = moments(MIB // 4 // columns, columns).view(torch.uint8).numpy().tobytes()
    plain = len(check(block, "float32"))
    by_rows = stored(block, "float32", columns)
    assert restored(by_rows, len(block)) == block
    assert len(by_rows) < plain - MIB / 200
    assert len(by_rows) < (SHARE["float32"] + 0.03) * MIB


@settings(max_examples=60)
@given(st.integers(1, 400), st.integers(1, 300), st.integers(0, 300), st.integers(0, 40), st.integers(0, 2**32))
def test_levels_come_off_and_back_on(rows: int, period: int, more: int, outside: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = rows * period + more
    place = np.arange(count)
    values = rng.integers(0, 12, count) + rng.integers(0, 256, count // 64 + 1)[place // 64]
    values = (values + rng.integers(0, 100, period)[place % period]).astype(np.uint8)
    values[rng.integers(0, count, outside)] = rng.integers(0, 256, outside)
    out, work = memoryview(bytearray(4 * count + 4 * period + 4096)), Workspace()
    size = level_into(values, period, out, work)
    if size:
        target = np.empty_like(values)
        unlevel(out[:size], target, work)
        assert np.array_equal(target, values)


def test_damaged_levels_are_refused() -> None:
    values = np.random.default_rng(1).integers(100, 110, 10_000).astype(np.uint8)
    out, work = memoryview(bytearray(100_000)), Workspace()
    size = level_into(values, 100, out, work)
    target = np.empty_like(values)
    for place, value in ((0, 5), (1, 1), (4, 0), (4, 101), (6, 2), (7, 255), (8, 0), (11, 255)):
        forged = bytearray(out[:size])
        assert forged[place] != value
        forged[place] = value
        with pytest.raises(streamxf.errors.CodecError):
            unlevel(memoryview(forged), target, work)
    with pytest.raises(streamxf.errors.CodecError, match="head"):
        unlevel(out[:5], target, work)


# -- what cannot be a block is refused ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def block() -> tuple[bytes, bytes]:
    raw = gaussian("bfloat16", 100_000) + b"\x07"
    return raw, stored(raw, "bfloat16")


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 0x80), (0, 0x05), (0, 0x44 | 0x10), (0, 0x44), (5, 0x0C), (5, 0x08), (10, 0x06), (10, 0x12), (15, 1)],
    ids=lambda value: f"{value:#04x}",
)
def test_a_table_that_no_encoder_writes_is_refused(block: tuple[bytes, bytes], place: int, value: int) -> None:
    raw, data = block
    damaged = bytearray(data)
    assert damaged[place] != value
    damaged[place] = value
    with pytest.raises(streamxf.errors.CodecError):
        restored(bytes(damaged), len(raw))


def test_exceptions_that_do_not_rise_are_refused() -> None:
    values = np.full(10_000, 100, np.uint8)
    values[[5, 9000]] = [1, 2]
    out, work = memoryview(bytearray(100_000)), Workspace()
    size = pack_into(values, 95, out, work)
    target = np.empty_like(values)
    unpack(out[:size], target, work)
    assert np.array_equal(target, values)
    for positions in ([5, 5], [9000, 5], [5, 10_000]):
        forged = bytearray(out[:size])
        forged[8:16] = np.array(positions, "<u4").tobytes()
        with pytest.raises(streamxf.errors.CodecError, match="exceptions"):
            unpack(memoryview(forged), target, work)
    with pytest.raises(streamxf.errors.CodecError, match="too short"):
        unpack(memoryview(b"\0\0\0\0\xff\xff\xff\xff"), target, work)
