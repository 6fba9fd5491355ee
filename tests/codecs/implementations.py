"""FloatZip's two implementations, of which a process has the choice."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from streamxf import FloatZip
from streamxf.codecs.floatzip import kernel
from streamxf.errors import CodecError
from streamxf.format.container import stage_limit
from tests.codecs.blocks import info
from tests.sanitized import VARIABLE

IMPLEMENTATIONS = ("compiled", "numpy")
# A sanitizer watches the compiled one only, and makes the other one slow.
BUILT = ("numpy",) if kernel.compiled is None else IMPLEMENTATIONS[: 1 if VARIABLE in os.environ else 2]


@contextmanager
def using(name: str) -> Iterator[None]:
    """Encode and decode with one of them; the test is skipped where it was not built."""
    built = kernel.compiled
    if name == "compiled" and built is None:
        pytest.skip("FloatZip's kernel was not built")
    if name == "numpy":
        kernel.compiled = None
    try:
        assert kernel.implementation() == name
        yield
    finally:
        kernel.compiled = built


def stored(block: bytes, dtype: str | None, row: int | None, implementation: str, speed: int = 1) -> bytes:
    with using(implementation):
        return bytes(FloatZip(speed).encode(memoryview(block), info(stage_limit(1 << 20), dtype, row)))


def outcome(payload: bytes, limit: int, implementation: str) -> bytes | str:
    """What the codec makes of a payload: the block, or the text of its refusal."""
    with using(implementation):
        try:
            return bytes(FloatZip().decode(memoryview(payload), info(limit)))
        except CodecError as error:
            return str(error)
