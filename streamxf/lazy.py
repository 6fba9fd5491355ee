"""Packages that take long to import, each imported when something of it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as numpy
    import torch as torch
else:

    class _Package:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, member: str) -> Any:
            return getattr(__import__(self._name), member)  # which waits for another thread that is importing it

    numpy, torch = _Package("numpy"), _Package("torch")
