"""Saves from and loads into tensors of a GPU: of every dtype, in every layout, small and large, in any stream."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import CheckpointWriter, ZStandard
from tests.dcp.helpers import KEY, blank

from .helpers import (
    DTYPES,
    MIB,
    assert_kept,
    chain,
    late,
    load,
    load_into,
    of_random_bytes,
    on_host,
    save,
    side_stream,
    weights,
    writer,
)

SHAPES = ((), (0,), (1,), (3, 0), (5000,), (500, 700))


def some_state(device: torch.device) -> dict[str, Any]:
    """Items of one block and of several, in threads' worth of files."""
    return {
        **{f"large.{number}": weights(5.3, device) for number in range(4)},
        **{f"small.{number}": torch.randn(number, device=device) for number in range(40)},
        "gaps": weights(3, device)[:, ::3],
        "scalar": torch.randn((), device=device),
        "step": 7,
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(device: torch.device, checkpoint: Path, dtype: torch.dtype) -> None:
    state = {str(shape): of_random_bytes(dtype, shape, device) for shape in SHAPES}
    save(state, checkpoint)
    assert_kept(load(state, checkpoint), state)
    here = on_host(state)
    assert_kept(load(here, checkpoint), here)  # on the other side
    save(here, checkpoint)
    assert_kept(load(state, checkpoint), state)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float32, torch.complex64], ids=str)
def test_views_are_saved(device: torch.device, checkpoint: Path, dtype: torch.dtype) -> None:
    base = of_random_bytes(dtype, (900, 1100), device)
    flat = base.view(-1)
    state = {
        "transposed": base.t(),
        "gaps": base[:, ::3],
        "rows": base[::2],
        "expanded": base[:1].expand(40, 1100),
        "odd": flat[1:700_000],
        "permuted": flat[: 30 * 50 * 70].view(30, 50, 70).permute(2, 0, 1),
        "channels_last": flat[: 4 * 8 * 90 * 70].view(4, 8, 90, 70).to(memory_format=torch.channels_last),
        "column": base[:, 5],
        "strided scalar": base[3, 4],
    }
    if dtype.is_complex:
        state |= {"conj": base.conj(), "conj gaps": base.conj()[:, ::2], "neg": base.conj().imag}
    save(state, checkpoint)
    assert_kept(load(state, checkpoint), state)


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.bfloat16, torch.complex64], ids=str)
def test_views_are_loaded_into(device: torch.device, checkpoint: Path, dtype: torch.dtype) -> None:
    wanted = {name: of_random_bytes(dtype, (600, 900), device) for name in ("t", "gaps", "middle", "plain")}
    save(wanted, checkpoint)
    t, gaps, middle = (of_random_bytes(dtype, shape, device) for shape in ((900, 600), (600, 2700), (1000, 900)))
    around = on_host({"before": middle[:200], "after": middle[800:], "between": gaps[:, 1::3]})
    target = {"t": t.t(), "gaps": gaps[:, ::3], "middle": middle[200:800], "plain": torch.empty_like(wanted["plain"])}
    load_into(target, checkpoint)
    assert_kept(target, wanted)
    assert_kept({"before": middle[:200], "after": middle[800:], "between": gaps[:, 1::3]}, around)


def test_targets_that_convert(device: torch.device, checkpoint: Path) -> None:
    state = {"wide": torch.randn(700, 1000, device=device), "conj": torch.randn(9000, device=device) + 0j}
    save(state, checkpoint)
    target = {
        "wide": torch.zeros(700, 1000, device=device, dtype=torch.bfloat16),
        "conj": torch.zeros_like(state["conj"]).conj(),
    }
    load_into(target, checkpoint)
    assert_kept(target, {"wide": state["wide"].bfloat16(), "conj": state["conj"]})


@pytest.mark.parametrize(
    ("block_log2", "threads", "extensions"),
    [(16, 1, None), (16, 3, []), (20, 3, None), (20, 1, [ZStandard()]), (24, 1, []), (24, 3, None)],
)
def test_blocks_of_any_size_several_files_and_chains(
    device: torch.device, checkpoint: Path, block_log2: int, threads: int, extensions: Any
) -> None:
    state, codecs = some_state(device), chain() if extensions is None else extensions
    save(state, checkpoint, block_size=1 << block_log2, thread_count=threads, _extensions=codecs)
    target = blank(state)
    dcp.load(target, storage_reader=streamxf.FileSystemReader(checkpoint, keys=KEY if extensions is None else None))
    assert_kept(target, state)


def test_a_foreign_extension_before_the_chain(device: torch.device, checkpoint: Path) -> None:
    from torch.distributed.checkpoint._extension import ZStandard as StockZStandard

    state = some_state(device)
    save(state, checkpoint, _extensions=[StockZStandard(), *chain()], block_size=1 << 16)
    assert_kept(load(state, checkpoint), state)


def test_checkpoints_of_torch_itself(device: torch.device, checkpoint: Path) -> None:
    state = some_state(device)
    dcp.save(state, storage_writer=dcp.FileSystemWriter(checkpoint, thread_count=2))
    target = blank(state)
    dcp.load(target, storage_reader=streamxf.FileSystemReader(checkpoint))
    assert_kept(target, state)
    target = blank(state)
    save(state, checkpoint, _extensions=[])
    dcp.load(target, storage_reader=dcp.FileSystemReader(checkpoint))
    assert_kept(target, state)


def test_thousands_of_small_tensors(device: torch.device, checkpoint: Path) -> None:
    state = {str(number): torch.randn(number % 2000, device=device) for number in range(1500)}
    save(state, checkpoint, thread_count=4)
    assert_kept(load(state, checkpoint), state)


def test_tensors_that_share_memory(device: torch.device, checkpoint: Path) -> None:
    tied = weights(9, device)
    state = {"a": tied, "b": tied, "part": tied[100:2000]}
    save(state, checkpoint)
    target = torch.zeros_like(tied)
    load_into({"a": target, "b": target, "part": target[100:2000]}, checkpoint)
    assert_kept({"a": target}, {"a": tied})


@pytest.mark.parametrize("kind", ["parameter", "inference", "leaf view"])
def test_tensors_that_torch_guards(device: torch.device, checkpoint: Path, kind: str) -> None:
    state = {"w": weights(6, device), "b": weights(0.05, device)}
    save(state, checkpoint)
    if kind == "inference":
        with torch.inference_mode():
            target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
            assert_kept(load_into(target, checkpoint), state)
            save(target, checkpoint)
    elif kind == "parameter":
        target = {name: torch.nn.Parameter(torch.zeros_like(tensor)) for name, tensor in state.items()}
        assert_kept(load_into({**target}, checkpoint), state)
        assert all(tensor.requires_grad and tensor._version for tensor in target.values())
    else:
        leaf = torch.zeros(2, *state["w"].shape, dtype=torch.bfloat16, device=device, requires_grad=True)
        load_into({"w": leaf.detach()[1], "b": torch.zeros_like(state["b"])}, checkpoint)
        assert_kept({"w": leaf[1]}, {"w": state["w"]})


def test_a_checkpoint_s_parts(device: torch.device, checkpoint: Path) -> None:
    state = some_state(device)
    with CheckpointWriter(checkpoint, chain=chain()) as made:
        for name, value in state.items():
            made[name] = value
    assert_kept(load(state, checkpoint), state)
    with streamxf.Checkpoint(checkpoint, keys=KEY) as opened:
        for name in ("large.0", "gaps", "scalar", "small.39"):
            assert_kept({"": opened[name].read().to(device)}, {"": state[name]})
        assert_kept({"": opened["large.1"][100:2000, 3:].to(device)}, {"": state["large.1"][100:2000, 3:]})


# -- streams ---------------------------------------------------------------------------------------


def all_changed(state: dict[str, Any], change: Any) -> None:
    for tensor in state.values():
        change(tensor)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("waits", [True, False], ids=["with an event", "in that stream"])
def test_what_a_late_stream_writes_is_saved(device: torch.device, checkpoint: Path, waits: bool, threads: int) -> None:
    """The save waits for the stream that is current, in whichever thread it reads a tensor."""
    size = MIB if device.type == "cuda" else MIB // 8
    state = {
        **{f"large.{n}": torch.zeros(3 * size + n, device=device) for n in range(3)},
        **{f"small.{n}": torch.zeros(n + 1, device=device) for n in range(9)},
        "gaps": torch.zeros(2 * size, 3, device=device)[:, 1],
        "conj": torch.zeros(size, device=device, dtype=torch.complex64).conj(),
    }
    aside, wait_for_it = side_stream(device)
    with aside:
        late(device)
        all_changed(state, lambda tensor: tensor.add_(3))
        if not waits:
            save(state, checkpoint, thread_count=threads)
    if waits:
        wait_for_it()
        save(state, checkpoint, thread_count=threads)
    assert_kept(load(state, checkpoint), {name: torch.full_like(on_host(tensor), 3) for name, tensor in state.items()})


def test_a_target_is_written_to_after_what_reads_it(device: torch.device, checkpoint: Path) -> None:
    state = {"w": weights(20, device), "b": weights(0.01, device), "gaps": weights(4, device)[:, ::2]}
    save(state, checkpoint)
    target = blank(state)
    old = on_host(target)
    aside, _ = side_stream(device)
    with aside:
        late(device)
        before = {name: tensor.clone() for name, tensor in target.items()}
        load_into(target, checkpoint)
        after = {name: tensor.clone() for name, tensor in target.items()}
    other, _ = side_stream(device)
    with other:  # which waits for nothing
        elsewhere = {name: tensor.clone() for name, tensor in target.items()}
    if device.type == "cuda":
        torch.cuda.synchronize()
    assert_kept(before, old)
    assert_kept(after, state)
    assert_kept(elsewhere, state)


class OfCopies(dcp.DefaultSavePlanner):
    """Gives copies of tensors, which nobody keeps."""

    def resolve_data(self, write_item: Any) -> Any:
        made = super().resolve_data(write_item)
        return made.clone() if isinstance(made, torch.Tensor) else made


@pytest.mark.parametrize("threads", [1, 3])
def test_tensors_that_are_freed_while_they_are_copied(device: torch.device, checkpoint: Path, threads: int) -> None:
    state = {str(number): weights(2.5, device) for number in range(30)}
    late(device)
    dcp.save(state, storage_writer=writer(checkpoint, thread_count=threads), planner=OfCopies())
    assert_kept(load(state, checkpoint), state)


def test_memory_that_is_used_again_while_it_is_copied(device: torch.device, checkpoint: Path) -> None:
    wanted = {}
    with CheckpointWriter(checkpoint, chain=chain()) as made:
        for number in range(30):
            tensor = weights(3.1, device)
            wanted[str(number)] = on_host(tensor)
            late(device)
            made.add(str(number), tensor, copy=False)
            del tensor
            garbage = [torch.full((MIB // 2,), -1.0, device=device) for _ in range(3)]
            del garbage
    assert_kept(load(wanted, checkpoint), wanted)


def test_loads_and_saves_at_the_same_time(device: torch.device, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    states = [{**some_state(device), "own": weights(8, device)} for _ in range(3)]

    def there_and_back(number: int) -> None:
        for _ in range(2):
            save(states[number], tmp_path / str(number), thread_count=2)
            assert_kept(load(states[number], tmp_path / str(number)), states[number])

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(there_and_back, number) for number in range(3)]:
            done.result(300)
