"""`Recommendation`: the chain to use, and the figures that led to it."""

from __future__ import annotations

from dataclasses import dataclass

from streamxf.chain import Chain
from streamxf.tuning.estimate import Estimate
from streamxf.wording import rate_text, size_text


@dataclass(frozen=True)
class Recommendation:
    """What `streamxf.tune` found. ``str()`` is a table for a terminal.

    - `chain`: the candidate to use: ``FileSystemWriter(path, chain=recommendation.chain)``.
    - `estimates`: one for each candidate, in the order in which they were given.
    - `raw_bytes`: bytes of the source's tensors, or of the file.
    - `sampled_bytes`: how many of them the chains were measured on.
    - `bandwidth`: of the storage, in bytes per second.
    - `workers`: threads that share the coding.
    - `reason`: why this chain, in words and figures.
    """

    chain: Chain
    estimates: tuple[Estimate, ...]
    raw_bytes: int
    sampled_bytes: int
    bandwidth: float
    workers: int
    reason: str

    def to_dict(self) -> dict[str, int | float | str]:
        """Everything as a flat dictionary, for experiment trackers and JSON; the keys name the units."""
        found: dict[str, int | float | str] = {
            "chain": str(self.chain),
            "reason": self.reason,
            "raw_bytes": self.raw_bytes,
            "sampled_bytes": self.sampled_bytes,
            "bandwidth_bytes_per_second": self.bandwidth,
            "workers": self.workers,
        }
        for each in self.estimates:
            found |= {
                f"stored_bytes/{each.label}": each.stored_bytes,
                f"stored_per_raw_byte/{each.label}": each.ratio,
                f"encode_bytes_per_second/{each.label}": each.encode_bytes_per_second,
                f"decode_bytes_per_second/{each.label}": each.decode_bytes_per_second,
                f"save_seconds/{each.label}": each.save_seconds,
                f"load_seconds/{each.label}": each.load_seconds,
            }
        return found

    def __str__(self) -> str:
        chosen = str(self.chain)
        head = ("", "chain", "stored", "of raw", "encode", "decode", "save", "load")
        rows = [head, *(_row("*" if each.chain == chosen else "", each) for each in self.estimates)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = [_aligned(row, widths) for row in rows]
        title = (
            f"{size_text(self.raw_bytes)} to storage of {rate_text(self.bandwidth)}, coded by {self.workers} "
            f"worker{'s' if self.workers > 1 else ''}; measured on {size_text(self.sampled_bytes)}"
        )
        return "\n".join([title, *lines, f"* because {self.reason}"])


def _row(mark: str, each: Estimate) -> tuple[str, ...]:
    return (
        mark,
        each.label,
        size_text(each.stored_bytes),
        f"{each.ratio:.3f}",
        rate_text(each.encode_bytes_per_second),
        rate_text(each.decode_bytes_per_second),
        f"{each.save_seconds:,.3f} s",
        f"{each.load_seconds:,.3f} s",
    )


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    left = [f"{cell:<{width}}" for cell, width in zip(row[:2], widths[:2], strict=True)]
    numbers = [f"{cell:>{width}}" for cell, width in zip(row[2:], widths[2:], strict=True)]
    return f"{left[0]} {'  '.join([left[1], *numbers])}".rstrip()
