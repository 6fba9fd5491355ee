"""Functions that fail."""

from collections.abc import Callable
from typing import Any, NoReturn

import pytest


def fails_with(kind: Callable[..., BaseException], *arguments: Any) -> Callable[..., NoReturn]:
    """A function that takes anything, and raises an error of its own each time: ``kind(*arguments)``."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise kind(*arguments)

    return fail


def fails_where(
    patch: pytest.MonkeyPatch, owner: Any, name: str, is_so: Callable[..., object], error: Exception
) -> None:
    """Have a function raise this error where its arguments are such."""
    real = getattr(owner, name)

    def fail(*arguments: Any, **options: Any) -> Any:
        if is_so(*arguments):
            raise error
        return real(*arguments, **options)

    patch.setattr(owner, name, fail)
