"""Functions that fail."""

from collections.abc import Callable
from typing import Any, NoReturn


def fails_with(kind: Callable[..., BaseException], *arguments: Any) -> Callable[..., NoReturn]:
    """A function that takes anything, and raises an error of its own each time: ``kind(*arguments)``."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise kind(*arguments)

    return fail
