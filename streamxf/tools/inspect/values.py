"""`Values`: statistics of the tensors of a checkpoint, and which tensors need attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamxf.tools.values.statistics import Statistics


@dataclass(frozen=True)
class Values:
    """Statistics of the tensors of a checkpoint.

    - `statistics`: by name; None for tensors whose elements are not numbers.
    """

    statistics: Mapping[str, Statistics | None]

    @cached_property
    def nan(self) -> tuple[str, ...]:
        """Tensors that contain NaN."""
        return tuple(name for name, found in self._known if found.nan)

    @cached_property
    def inf(self) -> tuple[str, ...]:
        """Tensors that contain an infinity."""
        return tuple(name for name, found in self._known if found.inf)

    @cached_property
    def zeros(self) -> tuple[str, ...]:
        """Tensors of nothing but zeros."""
        return tuple(name for name, found in self._known if found.all_zero)

    @cached_property
    def flagged(self) -> tuple[str, ...]:
        """All of these, those with NaN or infinities first."""
        return tuple(dict.fromkeys((*self.nan, *self.inf, *self.zeros)))

    @property
    def unknown(self) -> tuple[str, ...]:
        """Tensors whose elements are not numbers."""
        return tuple(name for name, found in self.statistics.items() if found is None)

    @property
    def _known(self) -> list[tuple[str, Statistics]]:
        return [(name, found) for name, found in self.statistics.items() if found is not None]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "with_nan": list(self.nan),
            "with_inf": list(self.inf),
            "all_zero": list(self.zeros),
            "not_numbers": list(self.unknown),
        }
