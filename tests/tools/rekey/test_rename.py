"""Items get other names in the index alone; whoever could read can read on, and swaps still show."""

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import streamxf
from streamxf import Checksum, Encrypt, ZStandard, errors
from streamxf.format.limits import NO_PICKLE
from streamxf.storage import lock
from streamxf.storage.opening import open_storage
from streamxf.tools.rekey.holders import MetadataFile
from tests.dcp import helpers
from tests.dcp.shards import save_as_ranks
from tests.tools.rekey.rekeying import KEY, OTHER_KEY, PRIVATE, SIGNER, STRANGER, contents, untouched

STATE = {"model": {"module.a": torch.arange(6.0), "module.b": torch.ones(3)}, "step": 7}
RENAMED = {"model": {"a": STATE["model"]["module.a"], "b": STATE["model"]["module.b"]}, "step": 7}
NAMES = {"model.module.*": "model.*"}
DONE = {"model.module.a": "model.a", "model.module.b": "model.b"}


@pytest.mark.parametrize("chain", [[], [ZStandard(), Checksum()], [Encrypt(KEY)]], ids=["bare", "plain", "encrypted"])
def test_names_paths_and_pickle_change_and_nothing_else(tmp_path: Path, chain: list[Any]) -> None:
    helpers.save(STATE, tmp_path, chain)
    before, keys = contents(tmp_path), KEY if chain and isinstance(chain[0], Encrypt) else None
    assert streamxf.rename(tmp_path, NAMES, keys=keys) == DONE
    after = contents(tmp_path)
    assert {name for name in before if before[name] != after[name]} == {".metadata"}
    helpers.assert_same(helpers.load(RENAMED, tmp_path, keys), RENAMED)
    index = helpers.index_of(tmp_path)
    assert {name: item.path for name, item in index.items.items()} == {
        "model.a": ("model", "a"),
        "model.b": ("model", "b"),
        "step": ("step",),
    }
    assert pickle.loads(after[".metadata"]).planner_data == {
        "model.a": ("model", "a"),
        "model.b": ("model", "b"),
        "step": ("step",),
    }
    assert streamxf.verify(tmp_path, keys=keys).ok
    assert streamxf.rename(tmp_path, {"model.module.a": "model.a"}, keys=keys) == {}
    with pytest.raises(errors.ParameterError, match=r"no items of these names: model\.module\.\*"):
        streamxf.rename(tmp_path, NAMES, keys=keys)


def test_stock_torch_finds_the_new_names(tmp_path: Path) -> None:
    helpers.save(STATE, tmp_path / "checkpoint", [])
    streamxf.rename(tmp_path / "checkpoint", NAMES)
    dcp_to_torch_save(tmp_path / "checkpoint", tmp_path / "whole.pt")
    helpers.assert_same(torch.load(tmp_path / "whole.pt"), RENAMED)


def test_it_stays_the_same_save(tmp_path: Path) -> None:
    helpers.save(STATE, tmp_path, [Encrypt(KEY)])
    save_id = helpers.index_of(tmp_path).save_id
    with pytest.raises(errors.IdentityError):
        streamxf.rename(tmp_path, NAMES, keys=KEY, expect_save_id="0" * 32)
    streamxf.rename(tmp_path, NAMES, keys=KEY, expect_save_id=save_id)
    helpers.assert_same(helpers.load(RENAMED, tmp_path, expect_save_id=save_id), RENAMED)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"model.module.a": "model.module.b"}, ("'model.module.b'", "model.module.a, model.module.b")),
        ({"model.module.a": "step"}, ("'step'",)),
        ({"*": "x*", "step": "xmodel.module.a"}, ("several items",)),
        ({"nothing": "else"}, ("no items", "nothing")),
        ({"mudule.*": "*"}, ("no items", "mudule.*")),
        ({"model.module.a": ""}, ("empty",)),
        ({"model.module.a": "\ud800"}, ("not valid Unicode",)),
        ({"model.module.*": "model"}, ("number of '*'",)),
        ({"a": 7}, ("mapping",)),
        ({"step": "model"}, ("nested state dict", "'model'")),
        ([("a", "b")], ("mapping",)),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(tmp_path: Path, names: Any, words: tuple[str, ...]) -> None:
    helpers.save(STATE, tmp_path, [Encrypt(KEY)])
    untouched(lambda: streamxf.rename(tmp_path, names, keys=KEY), tmp_path, errors.ParameterError, *words)


def test_names_may_be_exchanged(tmp_path: Path) -> None:
    state = {"a": torch.zeros(3), "b": torch.ones(3)}
    helpers.save(state, tmp_path)
    assert streamxf.rename(tmp_path, {"a": "b", "b": "a"}, keys=KEY) == {"a": "b", "b": "a"}
    found = helpers.load(state, tmp_path)
    helpers.assert_same(found, {"a": state["b"], "b": state["a"]})


def test_a_key_is_needed(tmp_path: Path) -> None:
    helpers.save(STATE, tmp_path, [Encrypt(KEY)])
    untouched(lambda: streamxf.rename(tmp_path, NAMES), tmp_path, errors.KeyMissingError)
    untouched(lambda: streamxf.rename(tmp_path, NAMES, keys=OTHER_KEY), tmp_path, errors.KeyMissingError)
    untouched(
        lambda: streamxf.rename(tmp_path, NAMES, keys=KEY, signer=SIGNER), tmp_path, errors.UnsupportedError, "signer"
    )


def test_what_is_not_encrypted_is_not_signed(tmp_path: Path) -> None:
    helpers.save(STATE, tmp_path, [Checksum()])
    untouched(lambda: streamxf.rename(tmp_path, NAMES, signer=SIGNER), tmp_path, errors.ParameterError, "signer= signs")


def test_all_who_vouched_vouch_anew(tmp_path: Path) -> None:
    helpers.save(STATE, tmp_path, [Encrypt([KEY, OTHER_KEY])])
    untouched(lambda: streamxf.rename(tmp_path, NAMES, keys=KEY), tmp_path, errors.PolicyError, OTHER_KEY.id, "vouched")
    streamxf.rename(tmp_path, NAMES, keys=[KEY, OTHER_KEY])
    for key in (KEY, OTHER_KEY):
        helpers.assert_same(helpers.load(RENAMED, tmp_path, key), RENAMED)


def test_what_is_signed_is_signed_again(tmp_path: Path) -> None:
    helpers.save(STATE, tmp_path, [Encrypt(PRIVATE.public, signer=SIGNER)])
    trusted: Any = {"keys": PRIVATE, "trust": SIGNER.verify_key}
    untouched(lambda: streamxf.rename(tmp_path, NAMES, **trusted), tmp_path, errors.PolicyError, SIGNER.id)
    untouched(
        lambda: streamxf.rename(tmp_path, NAMES, keys=PRIVATE, signer=SIGNER), tmp_path, errors.PolicyError, "trust"
    )
    streamxf.rename(tmp_path, NAMES, **trusted, signer=SIGNER)
    helpers.assert_same(helpers.load(RENAMED, tmp_path, PRIVATE, trust=SIGNER.verify_key), RENAMED)
    assert streamxf.verify(tmp_path, **trusted).ok
    with helpers.refused(errors.PolicyError, "not trusted"):
        helpers.load(RENAMED, tmp_path, PRIVATE, trust=STRANGER.verify_key)


def test_vouchers_that_nobody_checked_are_no_reason_to_vouch(tmp_path: Path) -> None:
    """Anyone may have written it who has the public key."""
    with pytest.warns(UserWarning, match="no signer"):
        helpers.save(STATE, tmp_path, [Encrypt(PRIVATE.public)])
    untouched(lambda: streamxf.rename(tmp_path, NAMES, keys=PRIVATE), tmp_path, errors.PolicyError)
    assert streamxf.rename(tmp_path, NAMES, keys=PRIVATE, allow_unsigned=True) == DONE
    helpers.assert_same(helpers.load(RENAMED, tmp_path, PRIVATE, allow_unsigned=True), RENAMED)


@pytest.mark.parametrize("chain", [[], [Checksum()]], ids=["bare", "containers"])
def test_stock_checkpoints_are_not_renamed(tmp_path: Path, chain: list[Any]) -> None:
    dcp.save(dict(STATE), storage_writer=dcp.FileSystemWriter(tmp_path, _extensions=chain or None))
    untouched(lambda: streamxf.rename(tmp_path, NAMES), tmp_path, errors.UnsupportedError, "no index")


def test_each_rank_has_its_own_metadata(tmp_path: Path) -> None:
    state = save_as_ranks(2, tmp_path, lambda: [Encrypt(KEY)], items=2, use_collectives=False)
    old = list(helpers.index_of(tmp_path, "__0.metadata").items)
    done = streamxf.rename(tmp_path, {"*": "new.*"}, keys=KEY)
    assert state
    assert done.keys() >= set(old)
    for rank in range(2):
        assert all(name.startswith("new.") for name in helpers.index_of(tmp_path, f"__{rank}.metadata").items)
    assert streamxf.verify(tmp_path, keys=KEY).ok


def test_after_an_interruption_the_same_call_does_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_as_ranks(2, tmp_path, lambda: [Encrypt(KEY)], items=2, use_collectives=False)
    put, calls = MetadataFile.replace, []

    def fail(self: MetadataFile, *args: Any) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise OSError("no")
        put(self, *args)

    monkeypatch.setattr(MetadataFile, "replace", fail)
    with pytest.raises(OSError, match="no"):
        streamxf.rename(tmp_path, {"rank.*": "new.*"}, keys=KEY)
    assert streamxf.verify(tmp_path, keys=KEY).ok
    assert streamxf.rename(tmp_path, {"rank.*": "new.*"}, keys=KEY) == {"rank.1.0": "new.1.0", "rank.1.1": "new.1.1"}


def test_a_save_that_is_published_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helpers.save(STATE, tmp_path)
    pack = MetadataFile.pack

    def late(*args: Any) -> bytes:
        made = pack(*args)
        helpers.save(helpers.small_state(), tmp_path)
        return made

    monkeypatch.setattr(MetadataFile, "pack", late)
    with pytest.raises(errors.MetadataError, match="replaced meanwhile"):
        streamxf.rename(tmp_path, NAMES, keys=KEY)
    helpers.assert_same(helpers.load(helpers.small_state(), tmp_path), helpers.small_state())


# -- swapped containers ------------------------------------------------------------------------------


@pytest.mark.parametrize("chain", [[Checksum()], [Encrypt(KEY)]], ids=["plain", "encrypted"])
def test_swapped_containers_show(tmp_path: Path, chain: list[Any]) -> None:
    """Even under each other's names."""
    keys = KEY if isinstance(chain[0], Encrypt) else None
    state = {"a": torch.zeros(3), "b": torch.ones(3)}
    helpers.save(state, tmp_path, chain)
    streamxf.rename(tmp_path, {"a": "b", "b": "a"}, keys=keys)
    helpers.swap(tmp_path, [helpers.index_of(tmp_path).items[name].places[0] for name in ("a", "b")])
    with helpers.refused(errors.IdentityError, "swapped"):
        helpers.load(state, tmp_path, keys)
    with helpers.refused(errors.IdentityError, "swapped"):
        helpers.load({"x.a": state["a"], "x.b": state["b"]}, tmp_path, keys, rename={"*": "x.*"})
    assert not streamxf.verify(tmp_path, keys=keys).ok


@pytest.mark.parametrize("chain", [[Checksum()], [Encrypt(KEY)]], ids=["plain", "encrypted"])
def test_two_renamed_checkpoints_do_not_mix(tmp_path: Path, chain: list[Any]) -> None:
    """Of the same items, sizes, names and keys; neither by a data file nor by a container at its number."""
    keys = KEY if isinstance(chain[0], Encrypt) else None
    one, two = tmp_path / "one", tmp_path / "two"
    for path, value in ((one, 1.0), (two, 2.0)):
        helpers.save({"a": torch.full((300,), value), "b": torch.full((300,), -value)}, path, chain)
        streamxf.rename(path, {"a": "b", "b": "a"}, keys=keys)
    (first,), (second,) = helpers.data_files(one), helpers.data_files(two)
    before = second.read_bytes()
    second.write_bytes(first.read_bytes())
    with helpers.refused(errors.IdentityError, "another process or save"):
        helpers.load({"a": torch.zeros(300)}, two, keys)
    (at,) = helpers.index_of(two).items["a"].places
    (other,) = helpers.index_of(one).items["a"].places
    assert at[1:3] == other[1:3]
    end = at.at + at.size
    second.write_bytes(before[: at.at] + first.read_bytes()[at.at : end] + before[end:])
    with helpers.refused(errors.IdentityError, "another process or save"):
        helpers.load({"a": torch.zeros(300)}, two, keys)
    helpers.assert_same(helpers.load({"b": torch.zeros(300)}, two, keys), {"b": torch.full((300,), 2.0)})
    if keys is None:
        return
    keys_of_two = bytes(helpers.sections_of(two)[1].keys)
    (two / ".metadata").write_bytes(helpers.rewritten(helpers.sections_of(one)[1], keys=keys_of_two))
    with helpers.refused(errors.AuthenticationError, "MAC"):
        helpers.load({"a": torch.zeros(300)}, two, keys)


LIKE_A_KEY = f"dek={'ab' * 32}&w=aeskw:{'c' * 16}:AAAA"


def test_a_name_that_looks_like_a_wrapped_key_is_none(tmp_path: Path) -> None:
    """Those of other writers are found in the pickle, which has the names, too."""
    state = {"a": torch.zeros(3), LIKE_A_KEY: torch.ones(3)}
    helpers.save(state, tmp_path, [Encrypt(KEY)])
    found = streamxf.recipients(tmp_path, keys=KEY)
    assert ([one.id for one in found.whole], found.part) == ([KEY.id], ())
    assert streamxf.rename(tmp_path, {"a": "b"}, keys=KEY) == {"a": "b"}
    assert streamxf.rekey(tmp_path, keys=KEY, recipients=OTHER_KEY) == (".metadata",)
    assert streamxf.rekey(tmp_path, keys=OTHER_KEY, recipients=OTHER_KEY) == ()
    wanted = {"b": state["a"], "x": state[LIKE_A_KEY]}
    assert streamxf.rename(tmp_path, {LIKE_A_KEY: "x"}, keys=OTHER_KEY)
    helpers.assert_same(helpers.load(wanted, tmp_path, OTHER_KEY), wanted)
    assert streamxf.rename(tmp_path, {"x": LIKE_A_KEY}, keys=OTHER_KEY)
    assert streamxf.verify(tmp_path, keys=OTHER_KEY).ok


def test_salvage_without_metadata_has_the_names_of_the_save(tmp_path: Path) -> None:
    helpers.save(STATE, tmp_path)
    streamxf.rename(tmp_path, NAMES, keys=KEY)
    assert sorted(streamxf.load_intact(tmp_path, keys=KEY).loaded) == ["model.a", "model.b", "step"]
    (data,) = helpers.data_files(tmp_path)
    (tmp_path / ".metadata").write_bytes((tmp_path / ".metadata").read_bytes()[:-9])
    found = streamxf.load_intact(tmp_path, keys=KEY, without_metadata=True)
    assert sorted(found.loaded) == ["model.module.a", "model.module.b", "step"], data


def test_a_copy_of_the_old_metadata_still_opens(tmp_path: Path) -> None:
    helpers.save(STATE, tmp_path)
    shutil.copy(tmp_path / ".metadata", tmp_path / "kept")
    streamxf.rename(tmp_path, NAMES, keys=KEY)
    (tmp_path / "kept").replace(tmp_path / ".metadata")
    helpers.assert_same(helpers.load(STATE, tmp_path), STATE)


def test_the_mac_covers_the_names(tmp_path: Path) -> None:
    helpers.save(STATE, tmp_path, [Encrypt(KEY)])
    keys = bytes(helpers.sections_of(tmp_path)[1].keys)
    streamxf.rename(tmp_path, NAMES, keys=KEY)
    pickled, sections = helpers.sections_of(tmp_path)
    (tmp_path / ".metadata").write_bytes(helpers.rewritten(sections, head=pickled, keys=keys))
    with helpers.refused(errors.AuthenticationError, "MAC"):
        helpers.load(RENAMED, tmp_path)


def test_a_folder_that_another_process_holds_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helpers.save(STATE, tmp_path)
    monkeypatch.setattr(lock, "PATIENCE", 0.0)
    before = (tmp_path / ".metadata").read_bytes()
    with lock.locked(open_storage(tmp_path)), ThreadPoolExecutor(1) as pool:
        with pytest.raises(errors.AbortedError, match="another process"):
            pool.submit(streamxf.rename, tmp_path, NAMES, keys=KEY).result()
    assert (tmp_path / ".metadata").read_bytes() == before
    assert streamxf.rename(tmp_path, NAMES, keys=KEY) == DONE


def test_what_has_no_pickle_gets_none(tmp_path: Path) -> None:
    helpers.save(STATE, tmp_path, stock=False)
    head = helpers.sections_of(tmp_path)[0]
    streamxf.rename(tmp_path, NAMES, keys=KEY)
    assert helpers.sections_of(tmp_path)[0] == head == NO_PICKLE
    helpers.assert_same(helpers.load(RENAMED, tmp_path), RENAMED)


def test_raw_tensors_are_renamed_and_mapped(tmp_path: Path) -> None:
    helpers.save(STATE, tmp_path, "raw")  # type: ignore[arg-type]
    assert streamxf.rename(tmp_path, NAMES) == DONE
    with streamxf.Checkpoint(tmp_path, rename={"model.*": "*"}) as checkpoint:
        helpers.assert_same(checkpoint["a"].mmap(), STATE["model"]["module.a"])  # type: ignore[union-attr]
    assert streamxf.verify(tmp_path).ok
