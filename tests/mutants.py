"""A plugin for pytest (``-p tests.mutants``) that takes one check out of the reader, named by ``STREAMXF_MUTANT``.

Each check is found by its name, so one that was renamed or removed is an error before any test runs. The outcomes of a
run's tests are written to the file that ``STREAMXF_OUTCOMES`` names.

Run as a program, it runs pytest once for each mutant, in processes that are forked from one that has imported what
takes seconds to import.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

Make = Callable[[Any], Any]  # from what a name stands for to what takes its place


# -- what takes the place of a check ---------------------------------------------------------------------------------


def nothing(_: Any) -> Any:
    return lambda *arguments, **options: None


def decrypt_without_tag(_: Any) -> Any:
    """AES-GCM decrypts in counter mode from 2 on, and the tag is the rest."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    def decode(self: Any, block: memoryview, info: Any) -> memoryview:
        key, _ = self.data_key.stream_keys(info.stream.salt, info.stream.header_digest)
        nonce = info.index.to_bytes(11, "big") + bytes([info.last])
        decryptor = Cipher(algorithms.AES(key), modes.CTR(nonce + b"\0\0\0\2")).decryptor()
        return memoryview(decryptor.update(bytes(block[:-16])))

    return decode


def unseal_anything(_: Any) -> Any:
    return lambda self, stream, seal: self.encryption.start(stream) if self.encryption is not None else None


def nonce_without(part: str) -> Make:
    """On both sides, so that what is intact still decrypts."""

    def make(nonce: Any) -> Any:
        return lambda info: nonce(replace(info, **{part: type(getattr(info, part))(0)}))

    return make


def expecting_what_is_there(part: str) -> Make:
    """The check of an identity, told to expect whatever `part` the container has."""

    def make(check: Any) -> Any:
        def checked(self: Any, found: Any, writer_id: bytes) -> None:
            if part == "writer":
                writer_id = found.writer_id
            elif part == "kind":
                self = replace(self, offset=None if found.kind is found.kind.OBJECT else self.offset or ())
            elif part == "name":
                self = replace(self, item=replace(self.item, name=found.name))
            elif self.chunk is not None:  # a number tells shards apart, too
                place = self.place._replace(number=found.number)
                offset = self.chunk.offset if part == "number" else found.offset
                self = replace(self, chunk=self.chunk._replace(offset=offset, place=place))
            else:
                self = replace(self, item=replace(self.item, place=self.place._replace(number=found.number)))
            check(self, found, writer_id)

        return checked

    return make


class _Agreeable(tuple):  # type: ignore[type-arg]
    """A chain that differs from no other."""

    __hash__ = tuple.__hash__

    def __ne__(self, other: object) -> bool:
        return False


def any_chain(read_header: Any) -> Any:
    def read(source: Any) -> Any:
        header = read_header(source)
        return replace(header, chain=_Agreeable(header.chain))

    return read


def any_size(_: Any) -> Any:
    return lambda self, file, place: file.slice(place.at, place.size)


def requiring_nothing(read: Any) -> Any:
    return lambda file, name, access: read(file, name, replace(access, require=None))


# -- the table -------------------------------------------------------------------------------------------------------

MUTANTS: dict[str, tuple[str, Make] | None] = {
    "none": None,
    "tag": ("streamxf.codecs.encrypt:Encrypt.decode", decrypt_without_tag),
    "seal": ("streamxf.chain:Chain.unseal", unseal_anything),
    "block number": ("streamxf.codecs.encrypt:_nonce", nonce_without("index")),
    "last block": ("streamxf.codecs.encrypt:_nonce", nonce_without("last")),
    "last block first": ("streamxf.stream.container:BlockReader.decode_ends", nothing),
    "name": ("streamxf.checkpoint.opening:ItemPart.check", expecting_what_is_there("name")),
    "number": ("streamxf.checkpoint.opening:ItemPart.check", expecting_what_is_there("number")),
    "offset": ("streamxf.checkpoint.opening:ItemPart.check", expecting_what_is_there("offset")),
    "kind": ("streamxf.dcp.attach:_ItemPartByTorch.check", expecting_what_is_there("kind")),
    "writer": ("streamxf.checkpoint.opening:ItemPart.check", expecting_what_is_there("writer")),
    "chain": ("streamxf.checkpoint.opening:read_header", any_chain),
    "vouchers": ("streamxf.keys.envelope:Vouchers.check", nothing),
    "file size": ("streamxf.checkpoint.opening:ItemOpener.source", any_size),
    "policy of items": ("streamxf.checkpoint.opening:ItemOpener._check_unpublished", nothing),
    "policy of metadata": ("streamxf.checkpoint.metadata:_stock", requiring_nothing),
    "policy of files": ("streamxf.stream.plain:_check_encrypted", nothing),
}


def pytest_configure(config: pytest.Config) -> None:
    name = os.environ["STREAMXF_MUTANT"]
    mutant = MUTANTS[name]
    if mutant is not None:
        where, make = mutant
        module, _, path = where.partition(":")
        *owners, attribute = path.split(".")
        owner: Any = import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        if attribute not in vars(owner):
            raise pytest.UsageError(f"mutant {name!r}: {where} is gone; name the check that took its place")
        setattr(owner, attribute, make(getattr(owner, attribute)))
    config.pluginmanager.register(_Outcomes(Path(os.environ["STREAMXF_OUTCOMES"])))


class _Outcomes:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._found[report.nodeid] = report.outcome if report.when == "call" else f"{report.when} {report.outcome}"

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps(self._found))


def run_all(folder: Path, plans: dict[str, list[str]]) -> None:
    """Run each mutant's tests; FOLDER/<mutant>.status and .json then say how it went, and .txt what pytest printed."""
    import torch.distributed.checkpoint  # noqa: F401

    for mutant, tests in plans.items():
        child = os.fork()
        if not child:
            os.environ |= {"STREAMXF_MUTANT": mutant, "STREAMXF_OUTCOMES": str(folder / f"{mutant}.json")}
            printed = os.open(folder / f"{mutant}.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(printed, 1)
            os.dup2(printed, 2)
            status = pytest.main(["-q", "-p", "tests.mutants", "-p", "no:cacheprovider", *tests])
            sys.stdout.flush()
            os._exit(status)
        (folder / f"{mutant}.status").write_text(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), json.loads(sys.argv[2]))
