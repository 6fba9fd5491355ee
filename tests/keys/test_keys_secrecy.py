"""Key material is in nothing that could be printed, logged, stored or sent."""

import base64
import copy
import dataclasses
import io
import logging
import os
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf import Encrypt, Key
from streamxf.chain import Chain
from streamxf.codec import StreamInfo
from streamxf.errors import KeyServiceError, StreamxfError
from streamxf.keys import AwsKms, KeyRing, PrivateKey, SigningKey, aws, read_environment, read_key, write_key
from streamxf.keys.envelope import DataKey
from streamxf.keys.file import PassphraseCost, protect_key
from streamxf.keys.ring import format_key, parse_key
from tests.keys.endpoints import Kms, answering
from tests.samples import encode

SECRET = bytes.fromhex("c3a1f0e2d4b59687788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1")


def spellings(secret: bytes) -> list[bytes]:
    """The ways in which 32 bytes turn up in text."""
    found = [secret, secret.hex().encode(), secret.hex().upper().encode(), repr(secret).encode()[2:-1]]
    for encoder in (base64.b64encode, base64.urlsafe_b64encode, base64.b32encode, base64.b85encode, base64.a85encode):
        found.append(encoder(secret).rstrip(b"="))
    return [*found, str(list(secret)).encode(), str(int.from_bytes(secret, "big")).encode()]


def leaks(text: str | bytes, *secrets: bytes) -> bool:
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return any(spelling in data for secret in secrets for spelling in spellings(secret))


@pytest.fixture
def key() -> Key:
    return Key(SECRET)


def test_the_search_finds_what_it_looks_for():
    assert all(leaks(spelling, SECRET) for spelling in spellings(SECRET))
    assert leaks(repr({"key": SECRET}), SECRET)


def test_texts(key):
    codec = Encrypt(key)
    secrets = (SECRET, key.wrapping_key(), key.vouching_key(), codec.data_key.secret)
    state = codec.start(StreamInfo(1 << 16, bytes(32), bytes(32)))
    for thing in (key, KeyRing([key]), codec, Chain([codec]), codec.data_key, state, codec.__dict__):
        for text in (repr(thing), str(thing), f"{thing}", f"{[thing]!r}", logging.Formatter().format(record(thing))):
            assert not leaks(text, *secrets)
    for thing in (codec, Chain([codec])):
        assert not leaks(repr(dataclasses.asdict(thing)), *secrets)


def record(thing: object) -> logging.LogRecord:
    return logging.LogRecord("test", logging.INFO, __file__, 1, "%r %s", (thing, thing), None)


def test_descriptors_and_files(key):
    codec = Encrypt(key)
    secrets = (SECRET, key.wrapping_key(), key.vouching_key(), codec.data_key.secret, codec.data_key.mac_key())
    for text in (str(codec.descriptor()), codec.get_descriptor(), codec.wrapped, codec.vouch(bytes(32))):
        assert not leaks(text, *secrets)
    assert not leaks(str(Chain([codec])), SECRET)
    assert not leaks(encode(b"data", [codec]), *secrets)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(key, protocol):
    codec = Encrypt(key)
    secrets = (SECRET, key.wrapping_key(), key.vouching_key(), codec.data_key.secret)
    for thing in (codec, Chain([codec]), {"codecs": [codec]}):
        assert not leaks(pickle.dumps(thing, protocol), *secrets)
    for thing in (key, [key], KeyRing([key]), codec.data_key):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(thing, protocol)


def test_copies_stay_in_the_process_and_work(key):
    codec = Encrypt(key)
    for again in (copy.copy(codec), copy.deepcopy(codec), copy.deepcopy([codec])[0], dataclasses.replace(codec)):
        assert streamxf.decode(streamxf.encode(b"data", [again]), keys=key) == b"data"
    assert copy.deepcopy(key) is copy.copy(key) is key


def test_exceptions(key):
    file = encode(b"data", [Encrypt(key)])
    other = Key.generate()
    damaged = file[:-60] + bytes([file[-60] ^ 1]) + file[-59:]
    attempts = [
        lambda: Encrypt(SECRET + b"x"),
        lambda: Key(SECRET.hex()),
        lambda: KeyRing.of([SECRET[:31]]),
        lambda: streamxf.decode(file),
        lambda: streamxf.decode(file, keys=other),
        lambda: streamxf.decode(damaged, keys=key),
        lambda: streamxf.open(io.BytesIO(), "wb", chain="encrypt", keys=[key, other]),
        lambda: streamxf.open(io.BytesIO(), "wb", chain=[Encrypt(key), streamxf.ZStandard()]),
        lambda: pickle.dumps(key),
    ]
    for attempt in attempts:
        with pytest.raises((StreamxfError, TypeError)) as caught:
            attempt()
        text = "".join(traceback.format_exception(caught.value))
        assert not leaks(text, SECRET, SECRET[:31], other.reveal())


def test_a_key_does_not_change(key):
    with pytest.raises(AttributeError):
        key.id = "0" * 16
    with pytest.raises(AttributeError):
        key._material = bytes(32)
    assert not hasattr(key, "__dict__")


# -- every kind of key -----------------------------------------------------------------------------

PASSPHRASE = "Zwölf Boxkämpfer jagen Viktor"
ALMOST = PASSPHRASE[:-1]
CHEAP = PassphraseCost(8, 1, 1)
SECRET_KEYS = [Key(SECRET), PrivateKey(SECRET), PrivateKey(SECRET, "hpke-x25519"), SigningKey(SECRET)]


def leaks_passphrase(text: str | bytes) -> bool:
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return leaks(data, ALMOST.encode()) or ascii(ALMOST).encode()[1:-1] in data


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """An error, and all that led to it."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and one not in seen:
            seen.append(one)
            waiting += [one.__cause__, one.__context__]
    return iter(seen)


def everything_in(error: BaseException) -> bytes:
    """What a log, a debugger or another rank may get of an error: texts, attributes and pickles of the whole chain."""
    parts = ["".join(traceback.format_exception(error)).encode("utf-8", "surrogateescape")]
    for one in chain_of(error):
        parts.append(repr((str(one), one, one.args, vars(one))).encode("utf-8", "surrogateescape"))
        parts.append(pickle.dumps(one))
        holders = [value for value in vars(one).values() if hasattr(value, "__dict__")]
        parts.append(repr([vars(holder) for holder in holders]).encode("utf-8", "surrogateescape"))
    return b"\n".join(parts)


@pytest.mark.parametrize("key", SECRET_KEYS, ids=repr)
def test_no_kind_of_secret_key_shows_or_travels(key):
    codec = Encrypt(Key(bytes(range(200, 232))), signer=key) if isinstance(key, SigningKey) else Encrypt(key)
    for thing in (key, [key], {"key": key}, codec, Chain([codec])):
        for text in (repr(thing), str(thing), f"{thing}", logging.Formatter().format(record(thing))):
            assert not leaks(text, SECRET)
    for thing in (codec, Chain([codec])):
        assert not leaks(pickle.dumps(thing), SECRET)
    with pytest.raises(TypeError, match="pickle") as caught:
        pickle.dumps({"key": key})
    assert not leaks(everything_in(caught.value), SECRET)
    assert not hasattr(key, "__dict__")


def test_the_search_finds_it_in_errors():
    def fail() -> None:
        try:
            raise ValueError(SECRET.hex())
        except ValueError:
            raise KeyError("nothing to see") from None

    with pytest.raises(KeyError) as caught:
        fail()
    assert leaks(everything_in(caught.value), SECRET)
    assert leaks_passphrase(everything_in(ValueError(PASSPHRASE)))


def damaged_texts(key: Any) -> Iterator[str]:
    """A key as text, in ways in which it gets broken."""
    line = format_key(key)
    yield from (
        line[:-1],
        line + "A",
        line.replace(key.id, "0" * 16),
        line.replace("secret", "public"),
        f"{line} {line}",
    )
    yield from (f"{line}\n{line}", line.replace(":", " "), SECRET.hex()[:-1], SECRET.hex() + "00", line.upper())
    yield base64.b64encode(SECRET).decode()[:-2] + "/="


@pytest.mark.parametrize("key", SECRET_KEYS, ids=repr)
def test_errors_about_keys_as_text(key, tmp_path, monkeypatch):
    attempts = []
    for number, text in enumerate(damaged_texts(key)):
        path = tmp_path / str(number)
        path.write_text(text)
        path.chmod(0o600)
        monkeypatch.setenv(f"STREAMXF_TEST_{number}", text)
        attempts += [
            lambda text=text: parse_key(text),
            lambda path=path: read_key(path),
            lambda number=number: read_environment(f"STREAMXF_TEST_{number}"),
            lambda text=text: read_environment(text),
            lambda text=text: KeyRing.of(text),
            lambda text=text: KeyRing.of(f"env:{text}"),
        ]
    raw = tmp_path / "raw"
    raw.write_bytes(b"\xff" + SECRET)
    raw.chmod(0o600)
    opened = tmp_path / "open to all"
    opened.write_text(format_key(key))
    opened.chmod(0o644)
    attempts += [lambda: read_key(raw), lambda: read_key(opened), lambda: write_key(opened, key)]
    for attempt in attempts:
        with pytest.raises(StreamxfError) as caught:
            attempt()
        assert not leaks(everything_in(caught.value), SECRET, SECRET[:31])


@pytest.mark.parametrize("key", SECRET_KEYS, ids=repr)
def test_errors_about_keys_in_the_place_of_a_path_or_an_arn(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    encoded = [base64.b64encode(SECRET), base64.urlsafe_b64encode(SECRET), base64.b85encode(SECRET)]
    texts = [*damaged_texts(key), format_key(key), SECRET.hex(), *(each.decode() for each in encoded)]
    texts += [f"{tmp_path}/{SECRET.hex()}", f"~/{SECRET.hex()}", f"/{SECRET.hex()}", SECRET.hex()[:32] + "/" * 300]
    for text in texts:
        attempts = [
            lambda text=text: KeyRing.of(f"file:{text}"),
            lambda text=text: KeyRing.of(f"aws-kms:{text}"),
            lambda text=text: read_key(text),
            lambda text=text: KeyRing.of(Path(text)),
            lambda text=text: write_key(f"{text}/new", key),
        ]
        for attempt in attempts:
            with pytest.raises(StreamxfError) as caught:
                attempt()
            assert not leaks(everything_in(caught.value), SECRET, SECRET[:31], SECRET[:16])


def test_a_path_that_is_one_is_shown(tmp_path):
    tmp_path.joinpath("a-folder-with-a-name-of-more-than-31-characters").mkdir()
    for place in ("missing.key", "missing/training.key", "a-folder-with-a-name-of-more-than-31-characters"):
        with pytest.raises(StreamxfError) as caught:
            read_key(tmp_path / place)
        assert caught.value.file == str(tmp_path / place)
    with pytest.raises(StreamxfError) as caught:
        read_key(tmp_path / "missing" / SECRET.hex())
    assert caught.value.file == str(tmp_path / "...")


def test_errors_about_passphrases(tmp_path):
    key = Key(SECRET)
    line = protect_key(key, PASSPHRASE, CHEAP)
    assert not leaks(line, SECRET)
    assert not leaks_passphrase(line)
    path = tmp_path / "key"
    path.write_text(line)
    path.chmod(0o600)
    plain = tmp_path / "plain"
    write_key(plain, key)
    for attempt in (
        lambda: read_key(path, ALMOST),
        lambda: read_key(path, PASSPHRASE + "\n"),
        lambda: read_key(plain, PASSPHRASE),
        lambda: write_key(path, key, PASSPHRASE),
        lambda: write_key(tmp_path / "new", key, PASSPHRASE + "\0"),
        lambda: write_key(tmp_path / "new", key.reveal(), PASSPHRASE),
    ):
        with pytest.raises(StreamxfError) as caught:
            attempt()
        found = everything_in(caught.value)
        assert not leaks(found, SECRET)
        assert not leaks_passphrase(found)


# -- a whole save and load -------------------------------------------------------------------------


@pytest.fixture
def spied(monkeypatch) -> dict[str, set[bytes]]:
    """All secrets that come up: data keys, and what is derived from them."""
    found: dict[str, set[bytes]] = {"data key": set(), "stream": set(), "mac": set(), "vouch": set()}
    stream_keys, mac_key, made, vouching_key = DataKey.stream_keys, DataKey.mac_key, DataKey.__init__, Key.vouching_key

    def init(self, secret):
        made(self, secret)
        found["data key"].add(secret)

    def streams(self, salt, digest):
        keys = stream_keys(self, salt, digest)
        found["stream"].add(keys[0])  # the second one, the seal, is in the header for everyone to see
        return keys

    def mac(self):
        key = mac_key(self)
        found["mac"].add(key)
        return key

    def vouch(self):
        key = vouching_key(self)
        found["vouch"].add(key)
        return key

    monkeypatch.setattr(DataKey, "__init__", init)
    monkeypatch.setattr(DataKey, "stream_keys", streams)
    monkeypatch.setattr(DataKey, "mac_key", mac)
    monkeypatch.setattr(Key, "vouching_key", vouch)
    return found


class Readers:
    """Three recipients and a signer, and what each of them reads with."""

    def __init__(self, kms: Kms) -> None:
        self.pair, self.signer, self.service = PrivateKey(os.urandom(32)), SigningKey.generate(), AwsKms(kms.new_key())
        recipients = ["env:STREAMXF_TEST_KEY", self.pair.public, self.service]
        self.codec = Encrypt(recipients, signer=self.signer)
        self.right = ["env:STREAMXF_TEST_KEY", KeyRing([self.pair], trust=self.signer.verify_key), self.service]
        stranger = SigningKey.generate().verify_key
        self.wrong = [Key.generate(), self.pair, KeyRing([self.service], trust=stranger)]

    def secrets(self, spied: dict[str, set[bytes]]) -> list[bytes]:
        assert all(spied.values())
        mine = [SECRET, Key(SECRET).wrapping_key(), self.pair.reveal(), self.signer.reveal()]
        return [*mine, *set().union(*spied.values())]

    def traces(self, errors: list[BaseException], log: str, output: Any) -> dict[str, bytes]:
        """What is left of all this, besides files."""
        assert len(errors) == len(self.wrong)
        assert "kms" in log  # boto3 did log, and the rest of it stays
        return {
            "log": log.encode("utf-8", "surrogateescape"),
            "standard output": (output.out + output.err).encode("utf-8", "surrogateescape"),
            "errors": b"".join(map(everything_in, errors)),
            "descriptors": self.codec.get_descriptor().encode(),
            "pickled codec": pickle.dumps(self.codec),
        }


@pytest.fixture
def readers(kms: Kms, monkeypatch, caplog) -> Readers:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("STREAMXF_TEST_KEY", SECRET.hex())
    return Readers(kms)


def test_a_whole_file_is_written_and_read(spied, readers: Readers, caplog, capfd):
    data = bytes(range(256)) * 1000
    file = encode(data, [streamxf.ZStandard(), readers.codec])
    for keys in readers.right:
        assert streamxf.decode(file, keys=keys) == data
    errors = []
    for keys in readers.wrong:
        with pytest.raises(StreamxfError) as caught:
            streamxf.decode(file, keys=keys)
        errors.append(caught.value)
    altered = file[:-20] + b"A" + file[-19:]
    for keys in readers.right:
        with pytest.raises(StreamxfError) as caught:
            streamxf.decode(altered, keys=keys)
        assert not leaks(everything_in(caught.value), *readers.secrets(spied))
    for place, trace in (readers.traces(errors, caplog.text, capfd.readouterr()) | {"file": file}).items():
        assert not leaks(trace, *readers.secrets(spied)), place


def test_a_whole_save_and_load(spied, readers: Readers, tmp_path, caplog, capfd):
    state = {"weight": torch.arange(100_000.0), "step": 7}
    writer = streamxf.FileSystemWriter(tmp_path / "step", _extensions=[streamxf.FloatZip(), readers.codec])
    dcp.save(state, storage_writer=writer)
    used = []
    for keys in readers.right:
        reader = streamxf.FileSystemReader(tmp_path / "step", keys=keys)
        loaded = {"weight": torch.zeros(100_000), "step": 0}
        dcp.load(loaded, storage_reader=reader)
        assert torch.equal(loaded["weight"], state["weight"])
        used.append(reader)
    errors = []
    for keys in readers.wrong:
        reader = streamxf.FileSystemReader(tmp_path / "step", keys=keys)
        with pytest.raises(CheckpointException) as caught:
            dcp.load({"weight": torch.zeros(100_000)}, storage_reader=reader)
        errors.append(caught.value)
    places = {path.name: path.read_bytes() for path in Path(tmp_path / "step").iterdir()}
    assert ".metadata" in places
    places |= readers.traces(errors, caplog.text, capfd.readouterr())
    places |= {
        "reports": repr([writer.report, *(reader.report for reader in used)]).encode(),
        "report attributes": repr([vars(reader.report) for reader in used]).encode(),
        "pickled metadata": pickle.dumps(used[0].read_metadata()),
    }
    for place, data in places.items():
        assert not leaks(data, *readers.secrets(spied)), place


def test_boto3_would_have_logged_the_data_key(kms: Kms, caplog, monkeypatch):
    """So that the test above cannot pass because there was nothing to find."""
    caplog.set_level(logging.DEBUG)
    key = AwsKms(kms.new_key())
    wrapped = key.wrap(SECRET, bytes(32))
    assert key.unwrap(wrapped, bytes(32)) == SECRET
    assert not leaks(caplog.text, SECRET)
    never = property(lambda _: False, lambda _, value: None)
    monkeypatch.setattr(aws, "_asking", type("Never", (), {"now": never})())
    key.wrap(SECRET, bytes(32))
    assert leaks(caplog.text, SECRET)
    caplog.clear()
    key.unwrap(wrapped, bytes(32))
    assert leaks(caplog.text, SECRET)


def test_boto3_still_logs_what_others_do_with_it(kms: Kms, caplog):
    key = AwsKms(kms.new_key())
    key.wrap(SECRET, bytes(32))
    caplog.set_level(logging.DEBUG)
    kms.new_key()
    assert "CreateKey" in caplog.text


@pytest.mark.parametrize("broken", ["refuses", "fails", "answers nonsense", "is not there"])
def test_errors_of_a_key_service(broken, kms: Kms, silent, caplog, monkeypatch):
    """botocore's exceptions hold the whole request, and a service may repeat what it was sent."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(aws, "ATTEMPTS", 1)
    echo = base64.b64encode(SECRET).decode()
    with answering() as answers:
        arn = kms.new_key()
        url = answers.url if broken != "is not there" else f"http://{silent}"
        key = AwsKms(arn, endpoint_url=url, allow_http=True)
        answers.set(
            {"refuses": 400, "fails": 500}.get(broken, 200),
            {"__type": "ValidationException" if broken != "fails" else echo, "message": f"no such value {echo}"},
        )
        for use in (key.wrap, key.unwrap, lambda secret, _: key.vouch(secret), key.check_voucher):
            with pytest.raises(KeyServiceError) as caught:
                use(SECRET, bytes(32))
            assert len(list(chain_of(caught.value))) == 1
            assert not leaks(everything_in(caught.value), SECRET)
    assert not leaks(caplog.text, SECRET)
