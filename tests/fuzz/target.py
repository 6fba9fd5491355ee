"""What a target is made of, how it is found by its name, and its corpus: ``corpus/NAME.tar.xz``, an input a member."""

import hashlib
import io
import random
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"

# Changes bytes in the way of libFuzzer, without any knowledge of what they are.
Havoc = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Target:
    """One thing to fuzz.

    Attributes
    ----------
    run : callable
        Takes an input; whatever it raises is a finding.
    seeds : callable
        Gives inputs that are accepted.
    mutate : callable
        From an input, a source of random choices and `Havoc` to another input.
    max_len : int
        Bytes of the longest input.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    mutate: Callable[[bytes, random.Random, Havoc], bytes]
    max_len: int = 4096


NAMES = (
    *("descriptor", "prefix", "framing", "plain", "tampered", "codecs", "floatzip", "differences"),
    *("values", "metadata", "note", "stock", "unpickler", "checkpoint", "salvage", "torchfile", "tools"),
)


def find(name: str) -> Target:
    """The target of that name."""
    found = import_module(f"tests.fuzz.target_{name}").TARGET
    assert isinstance(found, Target)
    return found


def corpus_of(name: str) -> dict[str, bytes]:
    """The inputs of a target's corpus, each under the name that libFuzzer gave it."""
    with tarfile.open(CORPUS / f"{name}.tar.xz") as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def keep(name: str, inputs: Iterable[bytes]) -> None:
    """Make `inputs` the corpus of a target."""
    with tarfile.open(CORPUS / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        for called, data in sorted((hashlib.sha1(each).hexdigest(), each) for each in inputs):
            member = tarfile.TarInfo(called)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
