"""`streamxf.salvage` without metadata: what the data files say of themselves, and never a mixture of two saves."""

import errno
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import streamxf
from streamxf import Checksum, Encrypt, PrivateKey, SigningKey, errors, load_intact
from streamxf.format.limits import CONTAINER_MAGIC
from tests.dcp import helpers
from tests.dcp.shards import Shard, rows, save_shards
from tests.failing import fails_with
from tests.keys.sealed import Service

from .test_salvage import CHAINS, Chain, check, flat, flip, keys_of, places

CODED = {name: chain for name, chain in CHAINS.items() if name != "none"}
each_chain = pytest.mark.parametrize("chain", CODED.values(), ids=CODED)


def damage(path: Path, how: str) -> None:
    """Make the metadata useless."""
    file = path / ".metadata"
    data = file.read_bytes()
    if how == "missing":
        return file.unlink()
    pickled = len(helpers.sections_of(path)[0])
    if how == "cut":
        file.write_bytes(data[:-1])
    elif how == "index":  # the pickle is intact
        file.write_bytes(data[:pickled] + bytes(len(data) - pickled))
    else:  # "flipped" is the frame's beginning: further on, it might hit a file's name, which then counts as missing
        flip(file, len(data) - 20 if how == "tag" else pickled)


# -- one process ---------------------------------------------------------------------------------


def test_everything_is_found_again(checkpoint: Path, state: dict[str, Any]) -> None:
    helpers.save(state, checkpoint, [Checksum()])
    damage(checkpoint, "index")
    with helpers.refused(errors.StreamxfError, "--without-metadata"):
        load_intact(checkpoint)
    found = load_intact(checkpoint, without_metadata=True)
    check(found, flat(state), set())
    assert "vouched" in str(found)
    assert found.save_ids == {}
    target = helpers.blank(state)
    load_intact(checkpoint, target, without_metadata=True)
    helpers.assert_same(target, state)


def test_encrypted_items_need_what_is_left_of_a_wrapped_key(checkpoint: Path, state: dict[str, Any]) -> None:
    helpers.save(state, checkpoint)
    for keys in (None, helpers.OTHER_KEY):
        with helpers.refused(errors.KeyMissingError):
            load_intact(checkpoint, keys=keys, without_metadata=True)
    damage(checkpoint, "missing")
    with helpers.refused(errors.MetadataError, "wrapped data key", "Restore .metadata"):
        load_intact(checkpoint, keys=helpers.KEY, without_metadata=True)


def test_a_signature_went_with_the_metadata(checkpoint: Path, state: dict[str, Any]) -> None:
    """So whoever needs one has to say that it may be missing."""
    reader, signer = PrivateKey.generate(), SigningKey.generate()
    helpers.save(state, checkpoint, [Encrypt(reader.public, signer=signer)])
    damage(checkpoint, "flipped")
    for options in ({}, {"trust": signer.verify_key}):
        with helpers.refused(errors.PolicyError, "cannot be signed"):
            load_intact(checkpoint, keys=reader, without_metadata=True, **options)
    check(load_intact(checkpoint, keys=reader, allow_unsigned=True, without_metadata=True), flat(state), set())


@pytest.mark.parametrize("draft", [".metadata.zz.tmp", ".metadata.00.tmp"], ids=["behind it", "before it"])
def test_a_service_is_asked_once_for_each_wrapped_key(checkpoint: Path, state: dict[str, Any], draft: str) -> None:
    """However often a planted draft repeats it, and not at all for what is not needed any more."""
    service = Service()
    helpers.save(state, checkpoint, [Encrypt(service)])
    (fragment,) = set(re.findall(rb"dek=[^&]+&w=acme-service:a+:[\w-]+", metadata(checkpoint)))
    damage(checkpoint, "tag")
    (checkpoint / ".metadata").rename(checkpoint / ".metadata.11.tmp")
    others = [b"%s&w=acme-other:%016x:AAAA" % (fragment, number) for number in range(1500)]
    wrong = [fragment[:-8] + b"%04d" % number + fragment[-4:] for number in range(1000, 1500)]
    (checkpoint / draft).write_bytes(b"\n".join([*others, *wrong, *wrong]))
    service.asked.clear()
    found = load_intact(checkpoint, keys=service, without_metadata=True)
    check(found, flat(state), set())
    assert len(service.asked) == 1


def test_wrapped_keys_of_others_are_each_asked_for_once(checkpoint: Path, state: dict[str, Any]) -> None:
    service = Service()
    helpers.save(state, checkpoint, [Encrypt(service)])
    (fragment,) = set(re.findall(rb"dek=[^&]+&w=acme-service:a+:[\w-]+", metadata(checkpoint)))
    (checkpoint / ".metadata").rename(checkpoint / ".metadata.11.tmp")
    wrong = [fragment[:-8] + b"%04d" % number + fragment[-4:] for number in range(1000, 1100)]
    others = [b"%s&w=acme-other:%016x:AAAA" % (each, number) for each in wrong for number in range(5)]
    (checkpoint / ".metadata.00.tmp").write_bytes(b"\n".join([*wrong, *others]))
    service.asked.clear()
    check(load_intact(checkpoint, keys=service, without_metadata=True), flat(state), set())
    assert len(service.asked) == len(set(service.asked)) == 101


def test_no_codec_is_looked_up_before_a_table_has_passed(tmp_path: Path) -> None:
    """Whoever may write there could name any codec of a third party, and have it imported."""
    helpers.save({"w": torch.arange(1000.0)}, tmp_path, helpers.full_chain())
    (file,) = helpers.data_files(tmp_path)
    file.write_bytes(file.read_bytes()[:-10] + bytes(10))
    damage(tmp_path, "cut")
    codecs = helpers.Watched()
    found = load_intact(tmp_path, keys=helpers.KEY, without_metadata=True, codecs=codecs)
    assert found.damaged
    assert not found.loaded
    assert codecs.built == []


def metadata(path: Path) -> bytes:
    return (path / ".metadata").read_bytes()


def test_items_without_a_codec_do_not_say_what_they_are(checkpoint: Path, state: dict[str, Any]) -> None:
    helpers.save(state, checkpoint, [])
    damage(checkpoint, "flipped")
    with helpers.refused(errors.MetadataError, "saved without a codec"):
        load_intact(checkpoint, without_metadata=True)


def test_metadata_that_lost_its_index_is_not_believed(checkpoint: Path, state: dict[str, Any]) -> None:
    """It unpickles; nothing vouches for it."""
    helpers.save(state, checkpoint, [])
    (checkpoint / ".metadata").write_bytes(helpers.sections_of(checkpoint)[0])
    with helpers.refused(errors.MetadataError, "lost its index"):
        load_intact(checkpoint)


def test_a_header_that_is_damaged(checkpoint: Path, state: dict[str, Any]) -> None:
    """Nothing says what stood there. The others say how large they were, so they are known to be whole."""
    helpers.save(state, checkpoint, [Checksum()])
    where = places(checkpoint)
    damage(checkpoint, "flipped")
    for number, place in enumerate(dict.fromkeys(where.values())):
        names = [name for name in where if where[name] == place]  # values share one
        file, at = place[0], place[1] + (0, 20, 70)[number % 3]
        flip(file, at)
        found = load_intact(checkpoint, without_metadata=True)
        assert set(found.loaded) == set(flat(state)) - {*names}
        assert found.lost == ()
        assert any(entry.item is None and "contents are unknown" in entry.message for entry in found.damaged)
        assert load_intact(checkpoint, helpers.blank(state), without_metadata=True).missing == tuple(
            name for name in flat(state) if name in names
        )
        flip(file, at)


def test_containers_inside_of_items_are_data(checkpoint: Path, tmp_path: Path) -> None:
    """A tensor that holds another checkpoint's file, and whose own container is damaged."""
    helpers.save({"inner": torch.arange(9)}, tmp_path / "inner", [streamxf.Checksum()])
    raw = torch.frombuffer(bytearray(helpers.data_files(tmp_path / "inner")[0].read_bytes()), dtype=torch.uint8)
    helpers.save({"outer": raw, "z": torch.ones(2)}, checkpoint, [streamxf.Checksum()])
    file, begin, end = places(checkpoint)["outer"]
    damage(checkpoint, "missing")
    assert torch.equal(load_intact(checkpoint, without_metadata=True).state_dict["outer"], raw)
    for at in (begin + 5, end - 5):
        flip(file, at)
        target = {"outer": raw, "z": torch.zeros(2), "inner": torch.zeros(9)}
        found = load_intact(checkpoint, target, without_metadata=True)
        assert found.loaded == ("z",)
        assert found.missing[-1:] == ("inner",)
        flip(file, at)


# -- several processes ---------------------------------------------------------------------------


def sharded(ranks: int = 3, seed: int = 1) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A state, and each rank's part of it."""
    generator = torch.Generator().manual_seed(seed)
    state: dict[str, Any] = {"w": torch.randn(9, 5, generator=generator), "b": torch.randn(7, generator=generator)}
    parts: list[dict[str, Any]] = [
        {"w": rows(state["w"], rank, ranks), "b": rows(state["b"], rank, ranks)} for rank in range(ranks)
    ]
    parts[0]["step"] = state["step"] = seed
    return state, parts


@each_chain
@pytest.mark.parametrize("how", ["tag", "flipped", "index", "cut"])
def test_all_ranks_of_a_save_that_the_rest_of_the_metadata_names(checkpoint: Path, chain: Chain, how: str) -> None:
    state, parts = sharded()
    save_shards(checkpoint, parts, chain)
    damage(checkpoint, how)
    check(load_intact(checkpoint, keys=keys_of(chain), without_metadata=True), state, set())


@each_chain
@pytest.mark.parametrize("how", ["tag", "index", "missing"])
def test_files_of_another_save_are_never_mixed_in(tmp_path: Path, chain: Chain, how: str) -> None:
    """Two saves of the same items, in one folder, as a save leaves them that was killed before it could clean up."""
    (old, old_parts), (new, new_parts) = sharded(3, 1), sharded(3, 2)
    save_shards(tmp_path / "old", old_parts, chain)
    save_shards(tmp_path / "new", new_parts, chain)
    for file in helpers.data_files(tmp_path / "old"):
        shutil.copy(file, tmp_path / "new")
    keys = keys_of(chain)
    if how == "missing" and keys is not None:
        (tmp_path / "new/.metadata").rename(tmp_path / "new/.metadata.01234567.tmp")
    else:
        damage(tmp_path / "new", how)
    if how == "tag":
        check(load_intact(tmp_path / "new", keys=keys, without_metadata=True), new, set())
        return
    with helpers.refused(errors.PolicyError, "a mixture would look whole"):
        load_intact(tmp_path / "new", keys=keys, without_metadata=True)
    ids = {file.stem[-32:] for file in helpers.data_files(tmp_path / "new")}
    old_ids = {file.stem[-32:] for file in helpers.data_files(tmp_path / "old")}
    check(load_intact(tmp_path / "new", keys=keys, without_metadata=ids - old_ids), new, set())
    if keys is None:
        check(load_intact(tmp_path / "new", without_metadata=old_ids), old, set())
    else:  # the old save's wrapped keys went with its metadata
        found = load_intact(tmp_path / "new", keys=keys, without_metadata=old_ids)
        assert found.loaded == ()
        assert {entry.error for entry in found.damaged if entry.item} == {"AuthenticationError"}
    both = load_intact(tmp_path / "new", keys=keys, without_metadata=ids)  # said against better knowledge
    assert both.loaded == () if keys is None else set(both.loaded) <= set(new)


def test_a_signed_index_says_which_files_belong_together_too(tmp_path: Path) -> None:
    reader, signer = PrivateKey.generate(), SigningKey.generate()
    (_, old), (new, parts) = sharded(3, 1), sharded(3, 2)
    for name, shards in (("old", old), ("new", parts)):
        save_shards(tmp_path / name, shards, lambda: [Encrypt(reader.public, signer=signer)])
    for file in helpers.data_files(tmp_path / "old"):
        shutil.copy(file, tmp_path / "new")
    damage(tmp_path / "new", "tag")
    check(load_intact(tmp_path / "new", keys=reader, allow_unsigned=True, without_metadata=True), new, set())


@pytest.mark.parametrize("ranks", [2, 3])
def test_one_file_of_each_rank_is_not_enough(tmp_path: Path, ranks: int) -> None:
    """Rank 0 of one save and rank 1 of another: nothing overlaps, and everything verifies."""
    for name, seed in (("a", 1), ("b", 2)):
        save_shards(tmp_path / name, sharded(ranks, seed)[1], CHAINS["zstd"])
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for rank in range(ranks):
        (file,) = (tmp_path / "ab"[rank % 2]).glob(f"__{rank}_*.distcp")
        shutil.copy(file, mixed)
    with helpers.refused(errors.PolicyError):
        load_intact(mixed, without_metadata=True)


def test_a_missing_file_is_missed(checkpoint: Path) -> None:
    state, parts = sharded()
    save_shards(checkpoint, parts, CHAINS["zstd"])
    damage(checkpoint, "tag")
    next(checkpoint.glob("__2_*.distcp")).unlink()
    found = load_intact(checkpoint, without_metadata=True)
    assert found.loaded == ("step",)
    assert set(found.lost) == {"w", "b"}
    assert "the file is missing" in str(found)
    target = {"w": torch.zeros(9, 5), "b": torch.zeros(7)}
    found = load_intact(checkpoint, target, without_metadata=True)
    assert found.loaded == ()
    assert not target["w"].any()
    found = load_intact(checkpoint, target, without_metadata=True, partial=True)
    assert torch.equal(target["w"][:6], state["w"][:6])
    assert not target["w"][6:].any()
    assert set(found.partial) == {"w", "b"}


def test_a_lost_shard_is_missed(checkpoint: Path) -> None:
    """The last rows: the others say how many there were."""
    _, parts = sharded()
    save_shards(checkpoint, parts, CHAINS["zstd"])
    file = next(checkpoint.glob("__2_*.distcp"))
    damage(checkpoint, "tag")
    data = file.read_bytes()
    flip(file, data.index(CONTAINER_MAGIC, 10) - 60)
    found = load_intact(checkpoint, without_metadata=True)
    (lost,) = found.lost
    assert set(found.loaded) == {"w", "b", "step"} - {lost}
    assert lost in {"w", "b"}


def test_the_same_chunk_twice_is_neither(checkpoint: Path) -> None:
    save_shards(checkpoint, [{"w": torch.ones(3), "a": torch.ones(2)}, {"v": torch.zeros(3)}], CHAINS["zstd"])
    save_shards(checkpoint.parent / "b", [{"w": torch.zeros(3)}], CHAINS["zstd"])
    shutil.copy(helpers.data_files(checkpoint.parent / "b")[0], checkpoint)
    (checkpoint / ".metadata").unlink()
    ids = {file.stem[-32:] for file in helpers.data_files(checkpoint)}
    found = load_intact(checkpoint, without_metadata=ids)
    assert set(found.loaded) == {"a", "v"}
    assert found.lost == ("w",)


def test_ids_that_are_not_there(checkpoint: Path, state: dict[str, Any]) -> None:
    helpers.save(state, checkpoint, CHAINS["zstd"]())
    (checkpoint / ".metadata").unlink()
    for wrong in (["0" * 32], "0" * 32):
        with helpers.refused(errors.ParameterError):
            load_intact(checkpoint, without_metadata=wrong)


def test_a_single_rank_of_metadata_of_its_own(checkpoint: Path) -> None:
    state, parts = sharded(2)
    save_shards(checkpoint, parts, CHAINS["zstd"], use_collectives=False)
    for file in checkpoint.glob("*.metadata"):
        file.write_bytes(b"damaged")
    with helpers.refused(errors.PolicyError, "of rank 0 (1 file)"):
        load_intact(checkpoint, without_metadata=True)
    ids = {file.stem[-32:] for file in helpers.data_files(checkpoint)}
    check(load_intact(checkpoint, without_metadata=ids), state, set())


def test_shards_whose_places_contradict_each_other(checkpoint: Path) -> None:
    """A gap between them: something is missing, and nobody said so."""
    parts = [
        {"w": Shard(torch.ones(2, 3), (0, 0), (6, 3)), "v": torch.ones(2)},
        {"w": Shard(torch.ones(2, 3), (4, 0), (6, 3))},
    ]
    parts[0]["x"] = Shard(torch.ones(2, 3), (2, 0), (6, 3))
    middle = parts[0].pop("x")
    save_shards(checkpoint, [parts[0], {"w": middle}, parts[1]], CHAINS["zstd"])
    next(checkpoint.glob("__1_*.distcp")).unlink()
    (checkpoint / ".metadata").unlink()
    ids = {file.stem[-32:] for file in helpers.data_files(checkpoint)}
    found = load_intact(checkpoint, without_metadata=ids)
    assert found.loaded == ("v",)
    assert found.lost == ("w",)


def test_an_altered_metadata_file_under_a_key_is_refused_by_default(checkpoint: Path, state: dict[str, Any]) -> None:
    helpers.save(state, checkpoint)
    damage(checkpoint, "tag")
    with helpers.refused(errors.MetadataError, "read what that cannot check"):
        load_intact(checkpoint, keys=helpers.KEY)


def test_metadata_that_the_disk_does_not_give_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helpers.save({"a": torch.zeros(9)}, tmp_path, [Checksum()])
    monkeypatch.setattr("streamxf.tools.salvage.damaged.read_metadata", fails_with(OSError, errno.EIO, "a bad sector"))
    with helpers.refused(errors.MetadataError, "the metadata cannot be read: OSError", "a bad sector"):
        load_intact(tmp_path)


def test_a_damaged_part_of_a_large_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("streamxf.format.index._SMALL", 0)
    monkeypatch.setattr("streamxf.format.index._BYTES", 1000)
    state = {f"w{number:02}": torch.full((5,), float(number)) for number in range(40)}
    helpers.save(state, tmp_path, [Checksum()])
    pickled, sections = helpers.sections_of(tmp_path)
    flip(tmp_path / ".metadata", len(pickled) + sections.parts_size - 20)  # not where the first items are
    with pytest.raises(
        errors.MetadataError, match=r"digest of a part.*`streamxf salvage --without-metadata` looks for"
    ):
        load_intact(tmp_path)
    helpers.assert_same(load_intact(tmp_path, without_metadata=True).state_dict, state)
