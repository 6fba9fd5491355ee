"""`check_storage`: what streamxf relies on of every storage, and so of one from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from streamxf.buffers import write_all
from streamxf.places import Storage
from streamxf.storage.conditions import ABSENT
from streamxf.tools.check.conformance import ConformanceError, require
from streamxf.tools.check.observed import observe_abilities, weaker_than

FILES = {
    "plain": bytes(range(256)) * 300,
    "empty": b"",
    "folder/inside": b"inside",
    "folder/deeper/still": b"still",
    "one*": b"a star",
    "one two [3]": b"blanks and brackets",
}
"""What the suite writes, by path. A storage that is only read has to hold the like."""


def check_storage(storage: Storage, files: Mapping[str, bytes] | None = None) -> None:
    """Check that a storage behaves as streamxf requires. Raises ConformanceError, which says where it does not.

    Parameters
    ----------
    storage : Storage
        An empty place. The suite leaves nothing there.
    files : mapping, optional
        For a read-only storage: all its contents by path, such as `streamxf.testing.FILES`. Then nothing is written.
    """
    check_needs(storage, files)
    if files is None:
        seen, known = observe_abilities(storage), storage.abilities
        for name in weaker_than(seen, known):
            require(False, f"by its abilities {name} is {getattr(known, name)!r}, and it was seen to be {seen[name]!r}")


def check_needs(storage: Storage, files: Mapping[str, bytes] | None = None) -> None:
    """The same of what no storage may lack, whatever its `Abilities`."""
    if files is not None:
        _check_reading(storage, files)
        return
    require(not storage.exists() or not [*storage.entries()], "the place is not empty")
    try:
        written = {}
        for path, data in FILES.items():
            storage.make_folder(path.rpartition("/")[0])
            with suppress(*[OSError] * (storage.near and "*" in path)):  # FAT and SMB have no such names
                storage.write(path, data)
                written[path] = data
        _check_reading(storage, written)
        _check_writing(storage)
    finally:
        with suppress(Exception):  # what went wrong before says more
            storage.remove_all()


def _check_reading(storage: Storage, files: Mapping[str, bytes]) -> None:
    for path, data in files.items():
        found, size = storage.info(path), len(data)
        require((found.kind, found.size) == ("file", size), f"info({path!r}) is {found}, of {size} bytes")
        spans = ((0, size), (0, 1), (size // 2, size), (size // 3, size // 2), (max(0, size - 1), size + 9))
        for start, stop in (span for span in spans if span[0] < span[1]):
            got = storage.read(path, start, stop)
            require(got == data[start:stop], f"read({path!r}, {start}, {stop}) gave {len(got)} bytes, or other ones")
        with storage.open(path) as file:
            require(file.read() == data, f"open({path!r}) reads something else")
        folder, _, name = path.rpartition("/")
        place = storage.child(folder) if folder else storage
        require(place.read(name, 0, size) == data, f"child({folder!r}).read({name!r}) gave something else")
        require(place.child(name).info().size == size, f"{path!r} is not found as a separate place")
    folders = {path.rpartition("/")[0] for path in files}
    for folder in folders | {""}:
        _check_listing(storage, folder, files)
    for path in ("missing", "plain/missing", "one"):
        _check_raises(lambda path=path: storage.info(path), f"info({path!r})")  # type: ignore[misc]
        _check_raises(lambda path=path: storage.read(path, 0, 1), f"read({path!r})")  # type: ignore[misc]
    _check_raises(lambda: list(storage.entries("missing")), "entries('missing')")
    path = max(files, key=lambda path: len(files[path]))
    steps = [(at, at + 1000) for at in range(0, len(files[path]), 1000)]
    with ThreadPoolExecutor(8) as pool:
        pieces = list(pool.map(lambda step: storage.read(path, *step), steps))
    require(b"".join(pieces) == files[path], "threads that read at once get each other's bytes")


def _check_listing(storage: Storage, folder: str, files: Mapping[str, bytes]) -> None:
    prefix = f"{folder}/" if folder else ""
    inside = [path.removeprefix(prefix) for path in files if path.startswith(prefix)]
    expected: dict[str, tuple[str, int | None]] = {
        path.partition("/")[0]: ("folder", None) if "/" in path else ("file", len(files[prefix + path]))
        for path in inside
    }
    listed = [(each.name, (each.kind, each.size)) for each in storage.entries(folder)]
    require(sorted(listed) == sorted(expected.items()), f"entries({folder!r}) are {listed}")
    require(not folder or storage.info(folder).kind == "folder", f"info({folder!r}) is no folder")
    found = {each.name: each.size for each in storage.below(folder)}
    require(found == {path: len(files[prefix + path]) for path in inside}, f"below({folder!r}) is {found}")


def _check_writing(storage: Storage) -> None:
    storage.write("plain", b"shorter")
    require(storage.read("plain", 0, 100) == b"shorter", "a file that is replaced keeps some of its old contents")
    with storage.create("created") as file:
        for piece in (b"first", memoryview(b"second"), bytearray(3 * 2**20)):
            with ThreadPoolExecutor(1) as another:  # it has ended by the time that an interrupt goes on
                another.submit(write_all, file, piece).result()
    whole = b"firstsecond" + bytes(3 * 2**20)
    require(storage.read("created", 0, len(whole) + 1) == whole, "create() does not store what was written")
    with suppress(KeyboardInterrupt), storage.create("broken") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    if not storage.near:
        require(not storage.exists("broken"), "a file whose block was left by an error is there")
    failed = storage.remove(["one*", "missing", "folder/inside"])
    require(not failed, f"remove() failed: {failed}")
    require(not storage.exists("one*") and not storage.exists("folder/inside"), "remove() has left a file")
    require(storage.exists("one two [3]") and storage.exists("folder/deeper/still"), "remove() has removed other files")
    if storage.stamp("plain") is not None:
        require(
            storage.abilities.replaces is not False, "there is a stamp, and by its abilities nothing is put over one"
        )
        require(storage.stamp("missing") == ABSENT, "the stamp of a file that is not there is not ABSENT")
    _check_raises(lambda: storage.put("plain", b"once", once=True), "put(once=True)", FileExistsError)
    with suppress(KeyboardInterrupt), storage.child("plain").replacing() as file:
        file.write(b"half")
        raise KeyboardInterrupt
    require(storage.read("plain", 0, 100) == b"shorter", "replacing() does not keep the file after an error")
    with storage.child("plain").replacing() as file:
        file.write(b"anew")
    require(storage.read("plain", 0, 100) == b"anew", "replacing() does not store what was written")


def _check_raises(act: Callable[[], object], what: str, error: type[OSError] = FileNotFoundError) -> None:
    also = (NotADirectoryError,) if error is FileNotFoundError else ()
    try:
        act()
    except (error, *also):
        return
    raise ConformanceError(f"{what} does not raise {error.__name__}")
