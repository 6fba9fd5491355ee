"""FloatZip's two implementations, of which a process has the choice."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from streamxf.codecs.floatzip import kernel

IMPLEMENTATIONS = ("compiled", "numpy")


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
