"""What `streamxf.salvage` brings back of a damaged checkpoint whose metadata is whole: all that the damage has not hit,
bit for bit, and nothing else.
"""

import datetime
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard as TensorShard
from torch.distributed.tensor import distribute_tensor

from streamxf import Checksum, FloatZip, Registry, ZStandard, errors, load_intact
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import read_metadata
from streamxf.format.items import Item, TensorItem
from streamxf.format.limits import MAX_STEP
from streamxf.storage.opening import open_storage
from streamxf.tools.salvage.fill import Salvaged
from tests.altered import flip, without_crcs
from tests.dcp import helpers
from tests.dcp.shards import rows, save_shards

Chain = Callable[[], list[Any]]
CHAINS: dict[str, Chain] = {
    "none": list,
    "zstd": lambda: [ZStandard()],
    "floatzip": lambda: [FloatZip()],
    "checksum": lambda: [Checksum()],
    "full": helpers.full_chain,
}
each_chain = pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)


def keys_of(chain: Chain) -> Any:
    return helpers.KEY if chain is helpers.full_chain else None


def flat(state: dict[str, Any], like: dict[str, Any] | None = None) -> dict[str, Any]:
    """The items of `state` by their names, as DCP names those of `like`; without what is not there."""
    found = {}
    for name, path in flatten_state_dict(state if like is None else like)[1].items():
        value: Any = state
        for step in path:
            value = value.get(step) if isinstance(value, dict) else value[step] if step < len(value) else None
            if value is None:
                break
        found[name] = value
    return found


def items(path: Path) -> Mapping[str, Item]:
    return read_metadata(open_storage(path), ".metadata", Access(), listing=True).items


def places(path: Path) -> dict[str, tuple[Path, int, int]]:
    """Each item's file, and the first and last byte of it."""
    found = {name: item.places[0] for name, item in items(path).items()}
    return {name: (path / place.file, place.at, place.at + place.size) for name, place in found.items()}


def check(found: Salvaged, state: dict[str, Any], lost: set[str]) -> None:
    """The result has everything of `state` but `lost`, and says so."""
    wanted = flat(state)
    assert set(found.lost) == lost
    assert set(found.loaded) == set(wanted) - lost
    helpers.assert_same(
        flat(found.state_dict, state), {name: None if name in lost else wanted[name] for name in wanted}
    )


# -- one fault -----------------------------------------------------------------------------------


@each_chain
def test_a_whole_checkpoint_comes_back_as_it_was(checkpoint: Path, state: dict[str, Any], chain: Chain) -> None:
    helpers.save(state, checkpoint, chain())
    found = load_intact(checkpoint, keys=keys_of(chain))
    helpers.assert_same(found.state_dict, state)
    assert (found.damaged, found.missing, found.partial, found.unchecked) == ((), (), (), ())
    assert set(found.loaded) == set(flat(state))
    assert len(found.save_ids[".metadata"]) == 32
    target = helpers.blank(state)
    found = load_intact(checkpoint, target, keys=keys_of(chain))
    assert found.state_dict is target
    helpers.assert_same(target, state)
    assert not found.damaged


def test_each_file_by_itself(checkpoint: Path, state: dict[str, Any]) -> None:
    helpers.save(state, checkpoint, thread_count=3, single_file_per_rank=False)
    where = places(checkpoint)
    file = helpers.data_files(checkpoint)[1]
    file.unlink()
    gone = {name for name, (path, _, _) in where.items() if path == file}
    assert gone
    found = load_intact(checkpoint, keys=helpers.KEY)
    check(found, state, gone)
    assert "missing from the checkpoint" in str(found)


def test_a_file_that_cannot_be_read(checkpoint: Path, state: dict[str, Any]) -> None:
    helpers.save(state, checkpoint)
    (file,) = helpers.data_files(checkpoint)
    file.unlink()
    file.mkdir()
    check(load_intact(checkpoint, keys=helpers.KEY), state, set(flat(state)))


# -- in place ------------------------------------------------------------------------------------


@each_chain
@pytest.mark.parametrize("cut", [1, 2])
def test_other_shards_and_strides(checkpoint: Path, chain: Chain, cut: int) -> None:
    """Rows saved by three ranks, loaded into tensors whose memory is in another order, or has gaps."""
    good, bad = torch.randn(9, 5), torch.randn(9, 5)
    save_shards(checkpoint, [{"good": rows(good, rank, 3), "bad": rows(bad, rank, 3)} for rank in range(3)], chain)
    found = items(checkpoint)["bad"]
    assert isinstance(found, TensorItem)
    place = next(chunk.place for chunk in found.chunks if chunk.offset == (3 * cut, 0))
    file = checkpoint / place.file
    shard = bad[3 * cut : 3 * cut + 3].contiguous()
    end = place.at + place.size
    flip(file, file.read_bytes().index(helpers.raw_bytes(shard).numpy().tobytes()) if chain is list else end - 50)
    result = load_intact(checkpoint, keys=keys_of(chain))
    assert result.loaded == ("good",)
    assert torch.equal(result.state_dict["good"], good)
    assert [(entry.item, entry.offset, entry.size) for entry in result.damaged] == [("bad", (3 * cut, 0), (3, 5))]

    target = {"good": torch.zeros(5, 18)[:, ::2].T, "bad": torch.full((5, 9), 7.0).T}
    result = load_intact(checkpoint, target, keys=keys_of(chain))
    assert torch.equal(target["good"], good)
    assert torch.equal(target["bad"], torch.full((9, 5), 7.0))
    assert result.lost == ("bad",)

    result = load_intact(checkpoint, keys=keys_of(chain), partial=True)
    assert result.partial == ("bad",)
    expected = bad.clone()
    expected[3 * cut : 3 * cut + 3] = 0
    assert torch.equal(result.state_dict["bad"], expected)
    target = {"bad": torch.full((9, 5), 7.0)}
    result = load_intact(checkpoint, target, keys=keys_of(chain), partial=True)
    expected[3 * cut : 3 * cut + 3] = 7
    assert torch.equal(target["bad"], expected)
    assert result.partial == result.lost == ("bad",)


def test_large_tensors_cast_and_transposed(checkpoint: Path) -> None:
    """Several blocks, of which one in the middle is damaged."""
    state = {"a": torch.randn(300, 400), "b": torch.randn(300, 400), "c": torch.randn(300, 400)}
    helpers.save(state, checkpoint, block_size=1 << 16)
    file, begin, end = places(checkpoint)["b"]
    flip(file, (begin + end) // 2)
    target = {"a": torch.zeros(400, 300).T, "b": torch.ones(400, 300).T, "c": torch.zeros(300, 400).double()}
    found = load_intact(checkpoint, target, keys=helpers.KEY)
    assert torch.equal(target["a"], state["a"])
    assert torch.equal(target["b"], torch.ones(300, 400))
    assert torch.equal(target["c"], state["c"].double())
    assert "distcp, block 3]" in str(found)
    check(load_intact(checkpoint, keys=helpers.KEY), state, {"b"})


def test_what_the_state_dict_asks_for_otherwise(checkpoint: Path) -> None:
    helpers.save(
        {name: torch.ones(size) for name, size in zip("abcd", (3, 4, 5, 6), strict=True)} | {"text": "x"}, checkpoint
    )
    target = {"a": torch.zeros(4), "b": torch.zeros(4), "c": "no tensor", "d": torch.zeros(2)}
    target |= {"text": "old", "new": torch.zeros(2)}
    found = load_intact(checkpoint, target, keys=helpers.KEY)
    assert found.missing == ("new",)
    assert set(found.lost) == {"a", "c", "d"}
    said = {entry.item: entry.message for entry in found.refused}
    assert found.damaged == ()
    assert "a tensor of shape (6,), the state dict one of (2,)" in said["d"]
    assert found.loaded == ("b", "text")
    wanted = {"a": torch.zeros(4), "b": torch.ones(4), "c": "no tensor", "d": torch.zeros(2)}
    helpers.assert_same(target, wanted | {"text": "x", "new": torch.zeros(2)})


class Counter:
    """A Stateful."""

    def __init__(self, value: float) -> None:
        self.state = {"value": torch.tensor(value), "name": "counter"}

    def state_dict(self) -> dict[str, Any]:
        return {name: item.clone() if isinstance(item, torch.Tensor) else item for name, item in self.state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_dtensors_of_one_process(checkpoint: Path) -> None:
    helpers.save({"good": torch.arange(12.0).reshape(4, 3), "bad": torch.ones(4, 3)}, checkpoint)
    file, begin, _ = places(checkpoint)["bad"]
    flip(file, begin + 200)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        target = {name: distribute_tensor(torch.full((4, 3), 7.0), mesh, [TensorShard(0)]) for name in ("good", "bad")}
        found = load_intact(checkpoint, target, keys=helpers.KEY)
        assert found.loaded == ("good",)
        assert torch.equal(target["good"].to_local(), torch.arange(12.0).reshape(4, 3))
        assert torch.equal(target["bad"].to_local(), torch.full((4, 3), 7.0))
    finally:
        torch.distributed.destroy_process_group()


def test_stateful_objects_are_filled(checkpoint: Path) -> None:
    helpers.save({"one": Counter(1.0), "other": Counter(2.0)}, checkpoint)
    file, begin, _ = places(checkpoint)["other.value"]
    flip(file, begin + 20)
    target = {"one": Counter(7.0), "other": Counter(8.0)}
    found = load_intact(checkpoint, target, keys=helpers.KEY)
    assert found.lost == ("other.value",)
    assert (float(target["one"].state["value"]), float(target["other"].state["value"])) == (1.0, 8.0)


# -- objects -------------------------------------------------------------------------------------


def test_objects_obey_the_readers_rules(checkpoint: Path) -> None:
    with pytest.warns(UserWarning, match="refuse"):
        helpers.save({"when": datetime.date(2020, 1, 2), "step": 3, "w": torch.ones(2)}, checkpoint)
    found = load_intact(checkpoint, keys=helpers.KEY)
    assert (found.damaged, found.lost) == ((), ("when",))
    assert [(entry.item, entry.error) for entry in found.refused] == [("when", "NotAllowedError")]
    assert "0 damaged, 0 missing, 1 intact but not loaded\nnot loaded: when: NotAllowedError: " in str(found)
    check(
        load_intact(checkpoint, keys=helpers.KEY, weights_only=False),
        {"when": datetime.date(2020, 1, 2), "step": 3, "w": torch.ones(2)},
        set(),
    )
    assert load_intact(checkpoint, keys=helpers.KEY, safe_globals=[datetime.date]).lost == ()


def test_what_is_lost_of_a_list_is_none(checkpoint: Path) -> None:
    state = {"list": [torch.ones(2), {"a": torch.zeros(3), "b": 5}, "end"]}
    helpers.save(state, checkpoint)
    file, begin, _ = places(checkpoint)["list.0"]
    flip(file, begin + 60)
    found = load_intact(checkpoint, keys=helpers.KEY)
    assert found.state_dict["list"][0] is None
    helpers.assert_same(found.state_dict["list"][1:], state["list"][1:])


# -- keys ----------------------------------------------------------------------------------------


def test_nothing_without_the_key(checkpoint: Path, state: dict[str, Any]) -> None:
    helpers.save(state, checkpoint)
    for keys in (None, helpers.OTHER_KEY):
        for options in ({}, {"without_metadata": True}):
            with helpers.refused(errors.KeyMissingError):
                load_intact(checkpoint, keys=keys, **options)


def test_plain_items_under_a_key(checkpoint: Path, state: dict[str, Any]) -> None:
    helpers.save(state, checkpoint, [ZStandard()])
    for options in ({}, {"without_metadata": True}):
        if options:
            found = load_intact(checkpoint, keys=helpers.KEY, **options)
            assert found.loaded == ()
            assert {entry.error for entry in found.damaged} == {"PolicyError"}
        else:
            with helpers.refused(errors.PolicyError):
                load_intact(checkpoint, keys=helpers.KEY)


def test_the_save_that_is_expected(checkpoint: Path, state: dict[str, Any]) -> None:
    helpers.save(state, checkpoint)
    save_id = load_intact(checkpoint, keys=helpers.KEY).save_ids[".metadata"]
    assert load_intact(checkpoint, keys=helpers.KEY, expect_save_id=save_id).damaged == ()
    with helpers.refused(errors.IdentityError):
        load_intact(checkpoint, keys=helpers.KEY, expect_save_id="0" * 32)
    with helpers.refused(errors.ParameterError):
        load_intact(checkpoint, keys=helpers.KEY, expect_save_id=save_id, without_metadata=True)


# -- checkpoints of torch's own writer -----------------------------------------------------------


def test_every_byte_of_a_stock_checkpoint(checkpoint: Path) -> None:
    """`torch.load` reads a flipped bit of a value as it is. Here the CRC-32 is compared."""
    state = {"a": torch.randn(40), "b": torch.randn(6, 4), "c": {"x": [1, "two"]}}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(checkpoint))
    where = places(checkpoint)
    hit = 0
    for name, (file, begin, end) in where.items():
        for at in range(begin + len(name), end, 31):
            flip(file, at, 1 << at % 8)
            found = load_intact(checkpoint)
            assert set(found.lost) <= {name}
            check(found, state, set(found.lost))
            hit += bool(found.damaged)
            flip(file, at, 1 << at % 8)
    assert hit > 15
    assert "no digest" in str(load_intact(checkpoint))


def test_a_stock_checkpoint_without_crcs(checkpoint: Path) -> None:
    with without_crcs():
        dcp.save({"a": torch.ones(3)}, storage_writer=dcp.FileSystemWriter(checkpoint))
    found = load_intact(checkpoint)
    assert found.loaded == ()
    assert "damage to it cannot be detected" in str(found)


def test_places_that_overlap(checkpoint: Path) -> None:
    """Nothing vouches for stock metadata, so of two items with one place neither is taken."""
    dcp.save(
        {name: torch.full((3,), float(n)) for n, name in enumerate("abc")},
        storage_writer=dcp.FileSystemWriter(checkpoint),
    )

    def overlap(content: Any) -> None:
        by_name = {index.fqn: index for index in content.storage_data}
        content.storage_data[by_name["a"]] = content.storage_data[by_name["b"]]

    helpers.rewrite_pickle(checkpoint, overlap)
    found = load_intact(checkpoint)
    assert found.loaded == ("c",)
    assert set(found.lost) == {"a", "b"}


def test_stock_extensions(checkpoint: Path, state: dict[str, Any]) -> None:
    registry = Registry()
    registry.register(helpers.Xor)
    dcp.save(state, storage_writer=dcp.FileSystemWriter(checkpoint, _extensions=[helpers.Xor(9)]))
    check(load_intact(checkpoint, codecs=registry), state, set())
    file, begin, end = places(checkpoint)["weight"]
    stored = file.read_bytes()[begin:end]
    at = begin + stored.index(bytes(value ^ 9 for value in state["weight"].numpy().tobytes()))
    flip(file, at)
    check(load_intact(checkpoint, codecs=registry), state, {"weight"})


# -- metadata of single ranks --------------------------------------------------------------------


def rank_states() -> list[dict[str, Any]]:
    whole = torch.arange(24.0).reshape(6, 4)
    return [{"sharded": rows(whole, rank, 3), "same": torch.ones(3), f"own.{rank}": rank} for rank in range(3)]


def test_ranks_are_merged_when_the_caller_says_that_they_belong_together(checkpoint: Path) -> None:
    ids = save_shards(checkpoint, rank_states(), helpers.full_chain, use_collectives=False)
    with helpers.refused(errors.PolicyError, "merge_ranks"):
        load_intact(checkpoint, keys=helpers.KEY)
    for options in ({"merge_ranks": True}, {"expect_save_id": ids}):
        found = load_intact(checkpoint, keys=helpers.KEY, **options)
        assert not found.damaged
        assert torch.equal(found.state_dict["sharded"], torch.arange(24.0).reshape(6, 4))
        assert set(found.loaded) == {"sharded", "same", "own.0", "own.1", "own.2"}
    assert list(found.save_ids.values()) == ids


def test_a_damaged_rank_does_not_stop_the_others(checkpoint: Path) -> None:
    ids = save_shards(checkpoint, rank_states(), helpers.full_chain, use_collectives=False)
    flip(checkpoint / "__1.metadata", -200)
    found = load_intact(checkpoint, keys=helpers.KEY, expect_save_id=ids)
    assert set(found.loaded) == {"same", "own.0", "own.2"}
    assert found.lost == ("sharded",)
    assert any(entry.file is not None and entry.file.endswith("__1.metadata") for entry in found.damaged)
    found = load_intact(checkpoint, keys=helpers.KEY, expect_save_id=ids, partial=True)
    assert torch.equal(found.state_dict["sharded"][:2], torch.arange(8.0).reshape(2, 4))
    assert not found.state_dict["sharded"][2:4].any()


def test_what_ranks_contradict_each_other_about_is_left_out(checkpoint: Path) -> None:
    """Also where a third rank has what the first one has."""
    states: list[dict[str, Any]] = [{"kind": torch.ones(3), "shape": torch.ones(2), "n": 1} for _ in range(3)]
    for rank, state in enumerate(states):
        state |= {"seed": rank, "w": torch.full((2,), float(rank))}
    states[1] |= {"kind": 5, "shape": torch.ones(4)}
    save_shards(checkpoint, states, helpers.full_chain, use_collectives=False)
    found = load_intact(checkpoint, keys=helpers.KEY, merge_ranks=True, partial=True)
    assert (found.loaded, set(found.lost), found.partial) == (("n",), {"kind", "shape", "seed", "w"}, ())
    assert all("choose one (rank)" in entry.message for entry in found.damaged)
    assert len(found.damaged) == 4
    assert load_intact(checkpoint, keys=helpers.KEY, rank=1).state_dict["seed"] == 1


def test_one_rank_alone(checkpoint: Path) -> None:
    save_shards(checkpoint, rank_states(), helpers.full_chain, use_collectives=False)
    found = load_intact(checkpoint, keys=helpers.KEY, rank=1)
    assert set(found.loaded) == {"same", "own.1"}
    assert found.lost == ("sharded",)
    with helpers.refused(errors.ParameterError):
        load_intact(checkpoint, keys=helpers.KEY, rank=7)


def test_a_copy_of_another_rank_replaces_a_damaged_one(checkpoint: Path) -> None:
    save_shards(checkpoint, [{"w": torch.ones(5)}, {"w": torch.ones(5)}], helpers.full_chain, use_collectives=False)
    flip(next(file for file in helpers.data_files(checkpoint) if file.name.startswith("__0_")), -50)
    found = load_intact(checkpoint, keys=helpers.KEY, merge_ranks=True)
    assert torch.equal(found.state_dict["w"], torch.ones(5))
    assert found.lost == ("w",)


def test_an_older_save_of_single_ranks_may_stand_where_a_newer_one_was(checkpoint: Path) -> None:
    """Its leftovers could not be removed, and the newer one's metadata was lost."""
    save_shards(checkpoint, [{"w": torch.zeros(3)}], helpers.full_chain, use_collectives=False)
    assert not any("newest" in text for text in load_intact(checkpoint, keys=helpers.KEY).unchecked)
    older = {file: file.read_bytes() for file in checkpoint.iterdir()}
    helpers.save({"w": torch.ones(3)}, checkpoint)
    for file, data in older.items():
        file.write_bytes(data)
    assert torch.equal(load_intact(checkpoint, keys=helpers.KEY).state_dict["w"], torch.ones(3))
    (checkpoint / ".metadata").unlink()
    found = load_intact(checkpoint, keys=helpers.KEY)
    assert torch.equal(found.state_dict["w"], torch.zeros(3))
    assert any("if this is the newest save: no metadata names 1 data file here" in text for text in found.unchecked)


def test_lists_that_items_do_not_explain(checkpoint: Path) -> None:
    states: list[dict[str, Any]] = [{str(rank): [torch.full((2,), float(rank))]} for rank in range(3)]
    save_shards(checkpoint, states, use_collectives=False)
    assert load_intact(checkpoint, merge_ranks=True).state_dict["2"][0][0] == 2
    for rank in range(3):

        def lengthen(index: Any, rank: int = rank) -> None:
            index["items"][f"{rank}.0"]["path"] = [str(rank), MAX_STEP]

        helpers.rewrite_index(checkpoint, lengthen, name=f"__{rank}.metadata")
        assert len(load_intact(checkpoint, rank=rank).state_dict[str(rank)]) == MAX_STEP + 1
    found = load_intact(checkpoint, merge_ranks=True)
    assert set(found.state_dict) == set(found.loaded) == {"0.0", "1.0", "2.0"}
    assert "longer lists" in found.unchecked[0]


@pytest.mark.parametrize("path", [None, ["x", "y"], ["x"], ["x", 3, "y"]])
def test_where_an_item_stood(checkpoint: Path, path: list[Any] | None) -> None:
    helpers.save({"a": {"weight": torch.ones(3)}}, checkpoint, [])

    def change(index: Any) -> None:
        item = index["items"]["a.weight"]
        item.pop("path") if path is None else item.update(path=path)

    helpers.rewrite_index(checkpoint, change)
    expected: Any = torch.ones(3)
    for step in reversed(path or ["a.weight"]):
        expected = {step: expected} if isinstance(step, str) else [None] * step + [expected]
    helpers.assert_same(load_intact(checkpoint).state_dict, expected)
    target = {"a": {"weight": torch.zeros(3)}}
    assert not load_intact(checkpoint, target).damaged
    helpers.assert_same(target, {"a": {"weight": torch.ones(3)}})


# -- others --------------------------------------------------------------------------------------


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_intact(tmp_path / "none")
    with helpers.refused(errors.NoCheckpointError, "no checkpoint in the folder"):
        load_intact(tmp_path)
    for step in (1, 2):
        helpers.save({"weight": torch.ones(3)}, tmp_path / f"step-{step}")
    with helpers.refused(errors.NoCheckpointError, "2 checkpoints in it: step-1, step-2. Name one of them"):
        load_intact(tmp_path)


def test_what_is_not_finished_is_no_damaged_checkpoint(checkpoint: Path) -> None:
    helpers.save({"weight": torch.ones(3)}, checkpoint, [Checksum()])
    (checkpoint / ".metadata").unlink()
    with helpers.refused(errors.MetadataError, "the checkpoint has no metadata"):
        load_intact(checkpoint)
    (file,) = helpers.data_files(checkpoint)
    file.with_name(f"{file.name}.slip").touch()
    with helpers.refused(
        errors.NoCheckpointError, "interrupted, or is at work. Finished so far: 1 data file. Repeat it"
    ):
        load_intact(checkpoint)
    assert load_intact(checkpoint, without_metadata=True).loaded == ("weight",)


def test_it_can_be_read(checkpoint: Path, state: dict[str, Any]) -> None:
    helpers.save(state, checkpoint)
    file, begin, _ = places(checkpoint)["weight"]
    flip(file, begin + 3)
    text = str(load_intact(checkpoint, helpers.blank(state) | {"more": 1}, keys=helpers.KEY))
    assert text.startswith("7 items salvaged, 1 damaged, 1 missing")
    assert "weight at [0, 0] of size [7, 5]" in text
    assert "missing: more" in text
