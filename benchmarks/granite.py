"""The rows of the PyTorch blog's table on DCP with ZStandard, and streamxf beside them.

Real weights cannot be shipped. What decides their size in a compressor is the distribution of their exponents, drawn as
it is found in trained transformers: matrices are normal with a standard deviation of their own, times log-normal
factors for each row and column (an excess kurtosis of about 1 to 2); the gains of norms are near 1.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

import torch

from benchmarks.dcp_sides import FLOATZIP, STOCK, STOCK_ZSTD, Run, State, empty_target, raw_bytes
from benchmarks.harness import Settings, alternate
from benchmarks.result import Result, Row, Spread, Table, ratios

THREADS = (1, 4, 8)
SIDES = (STOCK, STOCK_ZSTD, FLOATZIP)
SMOKE_FACTOR = 32
SPREAD, GAIN_SPREAD = 0.25, 0.1  # standard deviations of the factors' logarithms, and of gains


@dataclass(frozen=True)
class Granite:
    """A published configuration, of whose `layers` only so many are `kept`; the output shares the embedding."""

    name: str
    hidden: int
    intermediate: int
    vocabulary: int
    heads: int
    key_heads: int
    layers: int
    kept: int
    biased: bool

    def shrunk(self, factor: int) -> Granite:
        """The same proportions at a `factor`-th of the width, and one layer."""
        widths = {name: getattr(self, name) // factor for name in ("hidden", "intermediate", "vocabulary")}
        return replace(self, kept=1, **widths)

    def state(self) -> State:
        """Make a state dict in bf16."""
        draw = torch.Generator().manual_seed(1)
        narrow = self.hidden * self.key_heads // self.heads
        shapes = {
            "self_attn.q_proj": (self.hidden, self.hidden),
            "self_attn.k_proj": (narrow, self.hidden),
            "self_attn.v_proj": (narrow, self.hidden),
            "self_attn.o_proj": (self.hidden, self.hidden),
            "mlp.gate_proj": (self.intermediate, self.hidden),
            "mlp.up_proj": (self.intermediate, self.hidden),
            "mlp.down_proj": (self.hidden, self.intermediate),
        }
        state = {"model.embed_tokens.weight": _matrix(self.vocabulary, self.hidden, draw)}
        for prefix in (f"model.layers.{layer}" for layer in range(self.kept)):
            for name, (rows, columns) in shapes.items():
                state[f"{prefix}.{name}.weight"] = _matrix(rows, columns, draw)
                if self.biased:
                    state[f"{prefix}.{name}.bias"] = torch.randn(rows, generator=draw).mul_(0.05).bfloat16()
            for name in ("input_layernorm", "post_attention_layernorm"):
                state[f"{prefix}.{name}.weight"] = _gains(self.hidden, draw)
        return state | {"model.norm.weight": _gains(self.hidden, draw)}


def _matrix(rows: int, columns: int, draw: torch.Generator) -> torch.Tensor:
    scale = 0.02 * torch.randn(1, generator=draw).mul_(0.3).exp_()
    matrix = torch.randn(rows, columns, generator=draw)
    matrix *= scale * torch.randn(rows, 1, generator=draw).mul_(SPREAD).exp_()
    matrix *= torch.randn(columns, generator=draw).mul_(SPREAD).exp_()
    return matrix.bfloat16()


def _gains(size: int, draw: torch.Generator) -> torch.Tensor:
    return torch.randn(size, generator=draw).mul_(GAIN_SPREAD).add_(1).bfloat16()


MODELS = (
    Granite("granite-3b-code-instruct", 2560, 10240, 49152, 32, 32, 32, kept=4, biased=True),
    Granite("granite-3.2-8b-instruct", 4096, 12800, 49155, 32, 8, 40, kept=2, biased=False),
)


def run(settings: Settings) -> Result:
    """Measure."""
    rounds = min(settings.rounds, 3)
    rows: list[Row] = []
    for model in MODELS:
        state = settings.pick(model, model.shrunk(SMOKE_FACTOR)).state()
        rows += _measure(settings, model, state, rounds)
        del state
    shapes = "; ".join(
        f"{model.name}: hidden {model.hidden}, intermediate {model.intermediate}, vocabulary {model.vocabulary}, "
        f"{model.heads} heads ({model.key_heads} for keys and values), {model.kept} of {model.layers} layers"
        for model in MODELS
    )
    note = (
        "The rows of the table in PyTorch's blog post on compression in DCP: size and time of a save by model and "
        "threads, without compression and with ZStandard, and beside them streamxf with its default chain. **These "
        f"are not the published models.** The state dicts have their tensors' shapes ({shapes}; the embedding is "
        "shared with the output) and are cut to a few layers. The bf16 weights are drawn as trained ones are "
        "distributed: each matrix normal with a scale of its own, times log-normal factors (sigma 0.25) for each row "
        f"and column, and gains of norms near 1. Medians of {rounds} rounds (lowest-highest), files fsynced; ratios "
        "against stock DCP at the same `thread_count`."
    )
    return Result("granite", "The PyTorch blog's table", note, [Table(rows)])


def _measure(settings: Settings, model: Granite, state: State, rounds: int) -> list[Row]:
    """All writers with all numbers of threads, in turn."""
    folder, target, rows = settings.folder / "granite", empty_target(state), []
    runs = {threads: {side.name: Run(side, state, target, folder, threads) for side in SIDES} for threads in THREADS}
    sides = {each.path.name: each.save_only for by_name in runs.values() for each in by_name.values()}
    seconds = alternate(sides, rounds, f"granite: {model.name}")
    for threads, by_name in runs.items():
        stock = seconds[by_name[STOCK.name].path.name]["save"]
        for name, each in by_name.items():
            each.load()  # compares what the last save wrote
            own = seconds[each.path.name]["save"]
            rows.append(
                {
                    "model shape": model.name,
                    "threads": threads,
                    "writer": name,
                    "stored, MB": round(each.stored_bytes() / 1e6),
                    "size": each.stored_bytes() / raw_bytes(state),
                    "save, s": Spread.of(own),
                    "ratio to stock": ratios(own, stock),
                }
            )
    shutil.rmtree(folder)
    return rows
