"""What this machine lacks, or an object's own code raises, is no damage; what stored bytes show is."""

import errno
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from streamxf.errors import MetadataError, ObjectError, is_damage
from streamxf.torchsave.objects import Objects
from tests.altered import flipped
from tests.archives import saved
from tests.failing import fails_with

FAILS: dict[str, Callable[[], object]] = {
    "its own error": lambda: [].pop(),
    "an import": lambda: __import__("a_package_that_is_not_here"),
    "a file of its own": Path("/a/file/that/is/not/here").read_bytes,
    "a file that cannot be read": lambda: (_ for _ in ()).throw(OSError(errno.EIO, "a bad sector")),
    "what its file system lacks": lambda: (_ for _ in ()).throw(OSError(errno.EOPNOTSUPP, "no such call")),
}


class Filled:
    """An object whose own code runs when it is loaded."""

    fails: Callable[[], object] = staticmethod(lambda: None)

    def __setstate__(self, state: object) -> None:
        type(self).fails()


def filled() -> bytes:
    made = Filled()
    vars(made)["x"] = torch.ones(3)
    return saved({"made": made})


def saved_on(device: str, value: object) -> bytes:
    """What torch.save writes where all tensors are on such a device."""
    torch.serialization.register_package(0, lambda storage: device, lambda storage, location: None)
    try:
        return saved(value)
    finally:
        torch.serialization._package_registry.pop(0)


@pytest.mark.parametrize("how", FAILS)
def test_the_code_of_a_class_is_no_damage(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = filled()
    monkeypatch.setattr(Filled, "fails", FAILS[how])
    with pytest.raises(ObjectError, match=rf"by the code of {__name__}.Filled: \w+Error: ") as caught:
        Objects(safe_globals=[Filled]).load(data, 1000)
    assert not is_damage(caught.value)


@pytest.mark.parametrize("fails", [fails_with(MemoryError), lambda: torch.empty(2**55, dtype=torch.uint8)])
def test_what_there_is_no_memory_for_is_no_damage(fails: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = filled()
    monkeypatch.setattr(Filled, "fails", fails)
    with pytest.raises(MemoryError):
        Objects(safe_globals=[Filled]).load(data, 1000)


def test_a_flipped_bit_of_what_a_class_is_given_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    data = filled()
    damaged = flipped(data, data.index(torch.ones(3).numpy().tobytes()))
    monkeypatch.setattr(Filled, "fails", FAILS["its own error"])
    with pytest.raises(MetadataError, match="does not match its CRC-32"):
        Objects(safe_globals=[Filled]).load(damaged, 1000)


@pytest.mark.parametrize("device", ["cuda:3", "xpu:7", "a_vendor:0"])
def test_tensors_of_a_device_that_is_not_there_come_to_the_cpu(device: str) -> None:
    if torch.cuda.device_count() > 3:
        pytest.skip("there is a fourth GPU")
    wanted = [torch.arange(4.0), torch.nn.Parameter(torch.ones(2))]
    data = saved_on(device, (*wanted, torch.device("cuda:3")))
    assert device.encode() in data
    for made in (Objects().load(data, 1000), torch.load(io.BytesIO(Objects().renew(data, 1000)))):
        assert [each.device.type for each in made[:2]] == ["cpu", "cpu"]
        assert all(map(torch.equal, made[:2], wanted))
        assert made[2] == torch.device("cuda:3")
