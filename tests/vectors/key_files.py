"""A reader of key files, written from docs/format/keys.md alone."""

import base64
import re
import unicodedata

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from tests.reference_codecs import Refused, check, matched, refusing, unbase64
from tests.reference_keys import B64, KEY_ID, aes_key, hkdf, hpke_key, public_id

# Of Ed25519 and of X25519; 0, 1 and -1 are such coordinates in both, and nobody draws one of the others by chance.
LOW_ORDER = {
    *(0, 1, 2**255 - 20),
    0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
    0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
    0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
    0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
}


def read_key_file(data: bytes, passphrase: str | None = None) -> tuple[str, str, bytes]:
    """Whether the key is `secret` or `public`, its kind, and its bytes."""
    check(len(data) <= 65536, "key file: more than 64 KiB")
    with refusing("key file", UnicodeDecodeError):
        lines = [line.strip(" \t\r") for line in data.decode("utf-8").split("\n")]
    lines = [line for line in lines if line and not line.startswith("#")]
    check(len(lines) == 1, "K9: one key")
    [line] = lines
    if re.fullmatch("[0-9a-fA-F]{64}", line):
        return "secret", "aeskw", bytes.fromhex(line)
    if re.fullmatch("[A-Za-z0-9+/]{43}=", line):
        check(base64.b64encode(base64.b64decode(line)).decode() == line, "key file: base64")
        return "secret", "aeskw", base64.b64decode(line)
    form = rf"streamxf-(secret|public|protected):([a-z0-9+-]{{1,32}}):({KEY_ID}):([A-Za-z0-9_:.-]+)"
    what, kind, key_id, rest = matched(form, line, "key file: the form of a line")
    key = unbase64(rest, "key file") if what != "protected" else unprotect(line, rest, passphrase)
    signers = {"ed25519": 32, "ed25519+mldsa65": 32 + 1952}
    sizes = {**signers, "hpke-x25519": 32, "hpke-mlkem768-x25519": 1184 + 32} if what == "public" else {}
    check(len(key) == sizes.get(kind, 32) and (what != "public" or kind in sizes), "key file: kind or size")
    if what == "public":
        found = public_id(kind, key)
        curve = int.from_bytes(key[-32:] if kind not in signers else key[:32], "little") % 2**255 % (2**255 - 19)
        check(curve not in LOW_ORDER, "K9: a point of low order")
    elif kind in signers:
        seeds = hkdf(key, b"streamxf/1 " + kind.encode(), 64) if signers[kind] > 32 else key
        halves = [Ed25519PrivateKey.from_private_bytes(seeds[:32])]
        halves += [MLDSA65PrivateKey.from_seed_bytes(seeds[32:])] if seeds[32:] else []
        found = public_id(kind, b"".join(half.public_key().public_bytes_raw() for half in halves))
    else:
        check(kind in ("aeskw", "hpke-x25519", "hpke-mlkem768-x25519"), "key file: no such kind")
        found = (aes_key(key) if kind == "aeskw" else hpke_key(kind, key)).key_id
    check(found == key_id, "K9: key_id")
    return "public" if what == "public" else "secret", kind, key


def unprotect(line: str, data: str, passphrase: str | None) -> bytes:
    """The secret of a protected line."""
    number = "(0|[1-9][0-9]{0,6})"
    form = rf"argon2id:{number}\.{number}\.{number}:({B64}):({B64})"
    m, t, p, salt_text, sealed = matched(form, data, "K10: the form of a protected line")
    memory, passes, lanes, salt = int(m), int(t), int(p), unbase64(salt_text, "K10")
    check(1 <= passes <= 16 and 1 <= lanes <= 16 and 8 * lanes <= memory <= 1048576, "K10: m, t or p")
    check(len(salt) == 16, "K10: the salt")
    if passphrase is None:
        raise Refused("K10: the line needs a passphrase")
    argon = Argon2id(salt=salt, length=32, iterations=passes, lanes=lanes, memory_cost=memory)
    key = argon.derive(unicodedata.normalize("NFC", passphrase).encode())  # K11
    with refusing("K10: another passphrase, or a damaged line", InvalidTag, ValueError):
        return AESGCM(key).decrypt(bytes(12), unbase64(sealed, "K10"), line[: line.rindex(":") + 1].encode())
