"""The rows of the PyTorch blog's table on DCP with ZStandard, and streamxf beside them."""

from __future__ import annotations

import shutil

from benchmarks.data.granite import CHAT_8B, CODE_3B, Granite, granite_state
from benchmarks.dcp_sides import FLOATZIP, STOCK, STOCK_ZSTD, Run, State, empty_target, raw_bytes
from benchmarks.harness import Settings, alternate
from benchmarks.result import Result, Row, Table
from benchmarks.spread import Spread, ratios

MODELS = (CODE_3B, CHAT_8B)
THREADS = (1, 4, 8)
SIDES = (STOCK, STOCK_ZSTD, FLOATZIP)
SMOKE_FACTOR = 32


def run(settings: Settings) -> Result:
    """Measure."""
    rounds = min(settings.rounds, 3)
    rows: list[Row] = []
    for model in MODELS:
        state = granite_state(settings.pick(model, model.shrunk(SMOKE_FACTOR)))
        rows += _measure(settings, model, state, rounds)
        del state
    shapes = "; ".join(
        f"{model.name}: hidden {model.hidden}, intermediate {model.intermediate}, vocabulary {model.vocabulary}, "
        f"{model.heads} heads ({model.key_heads} for keys and values), {model.kept} of {model.layers} layers"
        for model in MODELS
    )
    note = (
        "The rows of the table in PyTorch's blog post on compression in DCP (modular `StreamTransformExtension`, "
        "ZStandard): size and time of a save by model and threads, without compression and with ZStandard, and beside "
        "them streamxf with its default chain, `[FloatZip()]`. **These are not the published models.** The state "
        f"dicts have their tensors' shapes ({shapes}; the embedding is shared with the output) and are cut to a few "
        "layers, so that state, loaded copy and files fit into 24 GiB and the table takes minutes. The bf16 weights "
        "are drawn as trained ones are distributed: each matrix normal with a scale of its own, times log-normal "
        f"factors (sigma 0.25) for each row and column, and gains of norms near 1. Medians of {rounds} rounds "
        "(lowest-highest), files fsynced; ratios against stock DCP at the same `thread_count`. The blog's own figures "
        "could not be consulted when this was written (only its summary, a reduction by 22%), so they are not "
        "repeated here."
    )
    return Result("granite", "The PyTorch blog's table", note, [Table(rows)])


def _measure(settings: Settings, model: Granite, state: State, rounds: int) -> list[Row]:
    folder = settings.folder / "granite"
    target = empty_target(state)
    runs = {(side.name, threads): Run(side, state, target, folder, threads) for threads in THREADS for side in SIDES}
    sides = {f"{name}, {threads}": run.save_only for (name, threads), run in runs.items()}
    seconds = alternate(sides, rounds, f"granite: {model.name}")
    rows = []
    for (name, threads), run in runs.items():
        run.load()  # compares what the last save wrote
        own, stock = seconds[f"{name}, {threads}"]["save"], seconds[f"{STOCK.name}, {threads}"]["save"]
        rows.append(
            {
                "model shape": model.name,
                "threads": threads,
                "writer": name,
                "stored, MB": round(run.stored_bytes() / 1e6),
                "size": run.stored_bytes() / raw_bytes(state),
                "save, s": Spread.of(own),
                "ratio to stock": ratios(own, stock),
            }
        )
    shutil.rmtree(folder)
    return rows
