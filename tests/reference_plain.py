"""Section 3 of docs/format.md: plain files. A part of reference_decoder.py."""

from hashlib import sha256

from reference_codecs import Fields, check, crc, refusing
from reference_decoder import BOUND, HASHED, KEYED, PUBLISHED, decode_blocks, parse_header, parse_table, unseal
from reference_keys import Reader, check_vouchers, parse_vouchers, parse_wrapped


def read_plain(file: bytes, reader: Reader) -> bytes:
    f = Fields(file, "prefix")
    magic, key_len = f.unpack("8sI")
    check(magic == bytes.fromhex("D353584B0D0A1A0A") and key_len <= 32768, "prefix: magic or key_len")
    key_data = f.take(key_len)
    check(crc(file[: f.at]) == f.take(4), "prefix: crc32c")
    data = f.rest()
    header = parse_header(data)
    check(bool(header.flags & KEYED) == bool(key_data), "prefix: a wrapped key exactly if keyed")
    check(not header.flags & (BOUND | PUBLISHED) and len(header.codecs) == len(header.chain), "P1: bound, transforms")
    if not key_data:
        check(not reader.keys, "K7: not encrypted")
        check(not header.flags & HASHED, "P1: hashed, without a signature")
        return decode_blocks(data, header, parse_table(data, header), b"")

    seal_len, stored, magic = Fields(data[max(len(data) - 16, 0) :], "seal").unpack("I4s8s")
    check(magic == bytes.fromhex("0A1A0D0A4B5853D3"), "seal: magic")
    check(1 <= seal_len <= min(32768, len(data) - 16), "seal: seal_len")
    data, seal = data[: -16 - seal_len], data[-16 - seal_len :]
    check(crc(seal[:-12]) == stored, "seal: crc32c")
    with refusing("K1: ASCII", UnicodeDecodeError):
        wrapped, vouchers = parse_wrapped(key_data.decode("ascii")), parse_vouchers(seal[:-16].decode("ascii"))
    check(bool(header.flags & HASHED) == bool(vouchers.signature), "P1: hashed exactly if signed")
    table = parse_table(data, header)
    data_key = check_vouchers(vouchers, wrapped, sha256(b"streamxf/1 plain" + table.digest).digest(), reader)
    return decode_blocks(data, header, table, unseal(header, data_key))
