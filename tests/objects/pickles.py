"""Files of ``torch.save`` around any pickle, and pickles put together opcode by opcode."""

import io

import torch


def archive(pickled: bytes, records: dict[str, bytes] | None = None) -> bytes:
    """A file as torch.save writes it, around any pickle."""
    file = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(file)
    for name, data in {"data.pkl": pickled, "byteorder": b"little", **(records or {})}.items():
        writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    return file.getvalue()


def _global(name: str) -> bytes:
    module, _, attribute = name.rpartition(".")
    return f"{module}\n{attribute}\n".encode()


def call(name: str, arguments: bytes) -> bytes:
    return b"c" + _global(name) + b"(" + arguments + b"tR"


def number(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def text(value: str) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def storage(elements: int, kind: str = "ByteStorage") -> bytes:
    return (
        b"("
        + text("storage")
        + b"ctorch\n"
        + kind.encode()
        + b"\n"
        + text("0")
        + text("cpu")
        + number(elements)
        + b"tQ"
    )


def tensor(elements: int, size: int, stride: int = 1, offset: int = 0, function: str = "_rebuild_tensor_v2") -> bytes:
    view = (
        number(offset) + b"(" + number(size) + b"t(" + number(stride) + b"t\x89" + call("collections.OrderedDict", b"")
    )
    return call("torch._utils." + function, storage(elements) + view)
