"""What Python code takes of memory."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def memory_below(most: int, above: int = -1) -> Iterator[None]:
    """Fails where the peak of what is allocated meanwhile is not between `above` and `most`."""
    tracemalloc.start()
    try:
        yield
        assert above < tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
