"""Keys as text: every kind there and back, what else counts as a key, and what does not."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf.errors import KeyMissingError, ParameterError, WrongKeyError
from streamxf.keys import Key, PrivateKey, SigningKey
from streamxf.keys.file import key_line, read_line
from streamxf.keys.key import encode_b64url
from streamxf.keys.ring import format_key, parse_key

SECRET = bytes(range(200, 232))
KEY = Key(SECRET)
KEYS = [
    *(KEY, PrivateKey(SECRET, "hpke-x25519"), PrivateKey(SECRET), PrivateKey(SECRET, "hpke-x25519").public),
    *(PrivateKey(SECRET).public, SigningKey(SECRET), SigningKey(SECRET).verify_key),
]
LINE = format_key(KEY)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{type(key).__name__}-{getattr(key, 'kind', '')}")
def test_there_and_back(key):
    line = format_key(key)
    assert line.startswith("streamxf-public:" if key in KEYS[3:5] + KEYS[6:] else "streamxf-secret:")
    for again in (parse_key(line), parse_key(f" {line}\n"), read_line(line)):
        assert again == key
        assert type(again) is type(key)


def test_the_line_is_that_of_the_format():
    assert f"streamxf-secret:aeskw:{KEY.id}:{encode_b64url(SECRET)}" == LINE


@pytest.mark.parametrize("line", [SECRET.hex(), SECRET.hex().upper(), base64.b64encode(SECRET).decode()])
def test_what_openssl_prints(line):
    assert read_line(line) == KEY


@pytest.mark.parametrize(
    "text", [LINE, f"{LINE}\n", f"\n\n# the team's key\n   # another comment\n\t{LINE} \r\n\n", f"# é\r\n{LINE}"]
)
def test_comments_and_blank_lines(text):
    assert read_line(key_line(text)) == KEY


@pytest.mark.parametrize("text", ["", "\n \n", "# only a comment", f"{LINE}\n{LINE}", f"{LINE}\nx", f"x\n\n{LINE}"])
def test_a_key_is_one_line(text):
    with pytest.raises(ParameterError, match=r"has \d lines"):
        key_line(text)


def change(part: int, value: str) -> str:
    parts = LINE.split(":")
    parts[part] = value
    return ":".join(parts)


@pytest.mark.parametrize(
    "line",
    [
        *(change(0, "streamxf-public"), change(0, "streamxf-protected"), change(0, "STREAMXF-SECRET")),
        *(change(1, "ed25519"), change(2, KEY.id[:-1]), change(3, encode_b64url(bytes(32)))),
        *(change(3, encode_b64url(SECRET)[:-1]), change(3, "é"), LINE[:-1], SECRET.hex() + "0"),
        *(SECRET.hex()[:-1] + "g", "0x" + SECRET.hex(), base64.b64encode(SECRET).decode()[:-1]),
        *(base64.b64encode(SECRET[:31]).decode(), base64.b64encode(SECRET + b"x").decode()),
        *(base64.urlsafe_b64encode(bytes([255]) * 32).decode(), "\u0660" * 64, f"{LINE} {LINE}"),
    ],
    ids=range(18),
)
def test_lines_that_hold_no_key(line):
    """More of them are among the vectors."""
    with pytest.raises(ParameterError) as caught:
        read_line(line)
    assert line not in str(caught.value)
    assert encode_b64url(SECRET)[:20] not in str(caught.value)


def test_a_passphrase_where_none_is_needed():
    for line in (LINE, SECRET.hex(), format_key(KEYS[3])):
        with pytest.raises(ParameterError, match="leave passphrase= out"):
            read_line(line, "a passphrase")


@given(text=st.text(max_size=200))
def test_any_text_gives_a_key_or_a_typed_error(text):
    try:
        read_line(text)
    except (ParameterError, KeyMissingError, WrongKeyError):
        return
    raise AssertionError("a key was found in random text")
