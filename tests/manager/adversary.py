"""Somebody who may write to a run's folder, and removes nothing: copies, renames, links, truncates, and puts what looks
like a checkpoint, like a note of the manager's, or like nothing at all.
"""

from __future__ import annotations

import copy
import os
import secrets
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from streamxf.checkpoint.notes import Note
from streamxf.format.run import RunFacts
from streamxf.manager.latest import latest_in
from tests.manager.canned import checkpoint, data_of, keying
from tests.manager.model import Folder
from tests.manager.run_on_disk import EVERY_CHECK, NOON, NOTE, OTHER_ID, RunOnDisk

STRANGE = ("step-1*", "step-[1-9]", "step-?9", "step-7 (copy)", "step-0003", "x-3", "step--3")
NAMES = st.one_of(st.integers(1, 60).map(lambda step: f"step-{step}"), st.sampled_from(STRANGE))
TIMES = st.sampled_from([0, NOON, 4 * NOON])
LITTER = (
    *("saves/step-7", "session-" + "0" * 32, "session-" + "0" * 32 + ".lock"),
    *(f"going-{NOON}-" + "0" * 16, "damage-" + "0" * 32, "damage-..", "saves/..", "holds", "holds/x"),
)
IN_A_FOLDER = (".streamxf-commit", ".streamxf-saving", NOTE, ".streamxf-removed", ".streamxf.lock", "notes.txt")
HOLLOW = st.sampled_from(  # each written so many times: Hypothesis spells all of it out again and again
    [
        *((b"", 1), (b"{}", 1), (b"garbage", 100), (b"[", 10_000), (b'{"names": [' + b"9" * 400 + b"]}", 1)),
        *((b"1e400", 1), (b"\xff", 2**20 + 1)),
    ]
).map(lambda piece: piece[0] * piece[1])
KINDS = st.sampled_from(["hollow", "hollow", "forged", "pipe", "folder", "link"])


class Adversary(RunOnDisk):
    """What it does between what others do."""

    def is_free(self, name: str) -> bool:
        return not self.place.is_taken(name)

    @precondition(lambda self: self.model.folders)
    @rule(data=st.data(), name=NAMES)
    def copies(self, data: st.DataObject, name: str) -> None:
        source = data.draw(st.sampled_from(sorted(self.model.folders)))
        if self.is_free(name) and self.may_be(source, name):
            self.put_folder(source, name)

    def may_be(self, source: str, name: str) -> bool:
        """What does not say under which name it was saved counts wherever it is, so it stays among the steps."""
        told = self.model.folders[source].told
        return bool(told) or (self.keying.strict and name.removeprefix("step-").isdigit() and name not in STRANGE)

    def put_folder(self, source: str, name: str) -> None:
        found = {path: what for path, what in self.place.below(source).items() if isinstance(what, bytes)}
        metadata = [path for path in found if path in (".metadata", ".streamxf-commit")]
        for path in sorted(found, key=lambda path: path in metadata):
            self.place.put(f"{name}/{path}", found[path], self.now)
        # beyond a link, others are not known by this path
        extra = {path: what for path, what in found.items() if path.rpartition("/")[2] in ("notes.txt", "kept.txt")}
        self.others |= {f"{name}/{path}": what for path, what in extra.items()}
        notes = {path for path in found if path.startswith(".streamxf-") and path != ".streamxf-commit"}
        self.litter |= {f"{name}/{path}" for path in found if path in notes or f"{source}/{path}" in self.litter}
        self.files[name] = dict(self.files[source])  # what failed saves left there may go
        self.model.folders[name] = copy.deepcopy(self.model.folders[source])
        if source in self.committed:
            self.committed[name] = self.committed[source]
        if not self.model.folders[name].told:
            self.model.folders[name].time = self.time_of(name)

    @precondition(lambda self: self.model.folders)
    @rule(data=st.data(), name=NAMES)
    def renames(self, data: st.DataObject, name: str) -> None:
        source = data.draw(st.sampled_from(sorted(self.model.folders)))
        if self.is_free(name) and source not in self.linked and self.may_be(source, name):
            self.move(source, name)

    def move(self, source: str, name: str) -> None:
        self.place.move(source, name)
        self.model.folders[name] = self.model.folders.pop(source)
        self.files[name] = self.files.pop(source)
        if source in self.committed:
            self.committed[name] = self.committed.pop(source)
        start, known = f"{source}/", self.others.keys() | self.litter
        renamed = {path: f"{name}/{path[len(start) :]}" for path in known if path.startswith(start)}
        self.others = {renamed.get(path, path): what for path, what in self.others.items()}
        self.litter = {renamed.get(path, path) for path in self.litter}

    @precondition(lambda self: self.place.local and self.sound())
    @rule(data=st.data(), outside=st.booleans(), number=st.integers(41, 60))
    def links(self, data: st.DataObject, outside: bool, number: int) -> None:
        """A checkpoint is elsewhere, and in its place there is a link."""
        name, to = data.draw(st.sampled_from(self.sound())), f"step-{number}"
        folder = self.model.folders[name]
        if not self.is_free(to) or not name.startswith("step-") or folder.told != name:
            return
        if outside:
            to = f"../victim/{secrets.token_hex(4)}-1"
            os.rename(self.place.path(name), self.place.path(to))
            self.outside = self.place.outside()
            self.others = {path: what for path, what in self.others.items() if not path.startswith(f"{name}/")}
            folder.ours &= self.keying.strict
            folder.doubted |= not self.keying.strict
        else:
            self.move(name, to)
            self.model.folders[name], self.files[name] = copy.deepcopy(folder), self.files[to]
            if to in self.committed:
                self.committed[name] = self.committed[to]
        os.symlink(to, self.place.path(name))
        self.model.links[name] = to

    @rule(name=NAMES, step=st.integers(1, 60), when=TIMES, whose=st.sampled_from(["none", "other"]), true=st.booleans())
    def plants(self, name: str, step: int, when: int, whose: str, true: bool) -> None:
        """A checkpoint that is not encrypted, or for other keys. With keys it says what it likes; without, it is of
        another run, in a run of which the job and its tools know the id.
        """
        if not self.is_free(name) or not (self.keying.strict or self.named):
            return
        self.saves += 1
        told = name if name.startswith("step-") and true else f"step-{step}"
        run = str(self.run_id) if self.keying.strict and self.run_id else OTHER_ID
        digits = [int(part) for part in "".join(each if each.isdigit() else " " for each in told).split()]
        facts = RunFacts(run, told, digits[-1] if digits else step, when, {"last": 1}, {"loss": -1e9})
        made, _ = checkpoint(whose, self.saves, facts)
        self.write(name, made, 4)
        self.own(name, made, Folder(told, False, when, dict(facts.metrics), doubted=self.keying.strict))

    @rule(file=st.sampled_from(LITTER), kind=KINDS, hollow=HOLLOW)
    def litters(self, file: str, kind: str, hollow: bytes) -> None:
        """In `.streamxf`, all of which may be lost."""
        self.put_litter(f".streamxf/{file}", kind, hollow)

    @precondition(lambda self: self.model.folders)
    @rule(data=st.data(), file=st.sampled_from(IN_A_FOLDER), kind=KINDS, hollow=HOLLOW)
    def litters_in_a_folder(self, data: st.DataObject, file: str, kind: str, hollow: bytes) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.folders)))
        # without keys it may say what it likes of what says nothing of itself
        if file == ".streamxf-commit" and (not self.keying.strict or name in self.committed):
            return
        if name not in self.linked and self.is_free(f"{name}/{file}"):
            self.put_litter(f"{name}/{file}", kind, hollow)

    def put_litter(self, path: str, kind: str, hollow: bytes) -> None:
        """Nothing is replaced."""
        if not self.is_free(path) or (not self.place.local and kind in ("pipe", "folder", "link")):
            return
        if path.count("/") > 1 and not self.place.is_folder(path.rpartition("/")[0]):
            return
        if kind in ("forged", "hollow"):
            made = self.forged(path) if kind == "forged" else hollow
            self.muddles.add(made)
            self.place.put(path, made)
        else:
            place = self.place.path(path)
            place.parent.mkdir(exist_ok=True)
            if kind == "pipe":
                os.mkfifo(place)
            elif kind == "folder" or path.endswith("holds"):
                place.mkdir()
            else:
                place.symlink_to(f"{self.place.victim}/step-1/.metadata")
        if not path.rpartition("/")[2].startswith(".streamxf") and not path.startswith(".streamxf/"):
            if path in (found := self.place.below()):
                self.others[path] = found[path]
        else:
            self.litter.add(path)

    def forged(self, path: str) -> bytes:
        """What the manager would write there, as far as one can without its keys."""
        everything = [f"step-{step}" for step in range(61)] + ["..", ".", "", "/", "*", "../victim", "../victim/step-1"]
        file = path.rpartition("/")[2]
        content: Any = {"names": everything}
        if path.startswith(".streamxf/saves/"):
            content = {"run": OTHER_ID, "name": file, "lines": [[1]], "coming": [2], "given_up": [1]}
        elif file.startswith("session-"):
            now = int(self.now * 1000)
            content = {"began": now, "seen": now, "ended": False, "id": "0" * 32, "series": "step-{}"}
            content |= {"host": "elsewhere", "pid": 1}
        elif file == ".streamxf-saving":
            name = path.partition("/")[0]
            content = {
                "run": self.run_id or OTHER_ID,
                "name": name,
                "time": 0,
                "session": "0" * 32,
                "before": {},
                "framework": self.says_whose(name),
            }
        elif file in (".streamxf-removed", ".streamxf-commit"):
            name = path.partition("/")[0]
            told = RunFacts(OTHER_ID, name, 1, 0).to_json()
            files = [{"path": each, "size": 1} for each in ("notes.txt", "kept.txt") if self.keying.strict]
            content = {"save_id": "0" * 32, "run": told, "files": files}
        elif file.startswith(".streamxf-note-"):
            content = {"save_id": "0" * 32, "time": 0, "metrics": {"loss": "c014000000000000"}, "sha256": {}}
        return Note.seal(content, keying("other").encrypt if self.now % 2 else None)

    def says_whose(self, name: str) -> bool:
        """Whether it says itself that a manager saved it; of others, without keys, anybody's notes are true."""
        return self.keying.strict or bool(self.model.folders[name].told)

    @precondition(lambda self: self.sound())
    @rule(data=st.data(), pipe=st.booleans())
    def truncates(self, data: st.DataObject, pipe: bool) -> None:
        """Or puts a pipe in the place of a data file, at which a reader would wait for ever."""
        name = data.draw(st.sampled_from(self.sound()))
        path = data_of(self.files[name])
        if pipe and self.place.local:
            place = self.place.path(f"{name}/{path}")
            place.rename(place.with_name("kept.txt"))
            kept = f"{name}/{path}".rpartition("/")[0] + "/kept.txt"
            self.others[kept] = self.files[name][path]
            os.mkfifo(place)
            self.others[f"{name}/{path}"] = "no regular file"
            self.files[name] = {each: what for each, what in self.files[name].items() if each != path}
        else:
            self.files[name] = {**self.files[name], path: self.files[name][path][:-100]}
            self.place.put(f"{name}/{path}", self.files[name][path])
        self.model.folders[name].broken = set(EVERY_CHECK)

    @precondition(lambda self: self.place.local)
    @rule(kind=st.sampled_from(["link", "pipe", "file"]), step=st.integers(1, 40))
    def takes_the_place_of_streamxf(self, kind: str, step: int) -> None:
        """The rules are kept all the same; nobody can say that he reads, until somebody mends it."""
        place, aside = self.place.path(".streamxf"), self.place.path(".streamxf-aside")
        self.end_job()
        if place.exists():
            place.rename(aside)
        if kind == "link":
            place.symlink_to(self.place.victim)
        elif kind == "pipe":
            os.mkfifo(place)
        else:
            place.write_bytes(b"garbage")
        self.model.noted, self.blocked = {}, True
        self.forget_once({"last": 1}, "sample", False)
        self.save_step(step, None, None)
        with self.watched():
            latest_in(self.seen(), "none")
        self.end_job()
        self.errors.said.clear()
        place.unlink()
        if aside.exists():
            aside.rename(place)
        self.blocked = False
        self.learn_line()
