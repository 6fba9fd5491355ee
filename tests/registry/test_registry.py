"""Codecs of other packages: found by their exact name, imported only then, and never by surprise."""

import io
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest

import streamxf
from streamxf import Checksum, CodecRegistry, ZStandard
from streamxf.chain import Chain
from streamxf.codec import BUILTINS, Provider, providers_in
from streamxf.codecs.checksum import Checksum as ChecksumClass
from streamxf.descriptor import Descriptor
from streamxf.errors import CodecNotAllowedError, DescriptorError, DuplicateCodecError, UnknownCodecError
from streamxf.keys import KeyRing
from tests.forge import take_apart
from tests.samples import encode

SOURCE = '''
from dataclasses import dataclass, field
from typing import ClassVar
from streamxf import Codec

@dataclass(frozen=True)
class Flip(Codec):
    """Flips all bits that a mask has."""

    name: ClassVar[str] = "{name}"
    version: ClassVar[int] = {version}
    mask: int = 255
    effort: int = field(default=1, metadata={{"encode_only": True}})

    def encode(self, block, info):
        return bytes(byte ^ self.mask for byte in block)

    decode = encode

class Outer:
    Flip = Flip
'''


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a package with an entry point on sys.path, as an installer would."""
    modules = set(sys.modules)

    def install(package, module, name, *, value=None, source=None, version=1, folder="site"):
        site = tmp_path / folder
        site.mkdir(exist_ok=True)
        (site / f"{module}.py").write_text(SOURCE.format(name=name, version=version) if source is None else source)
        info = site / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[streamxf.codecs]\n{name} = {value or module + ':Flip'}\n")
        monkeypatch.syspath_prepend(site)
        return module

    yield install
    for module in set(sys.modules) - modules:
        if module.startswith("fake_"):
            del sys.modules[module]


def test_found_by_name_and_imported_only_then(install):
    module = install("acme-codec", "fake_acme", "acme.flip")
    install("bomb-codec", "fake_bomb", "acme.bomb", source="raise SystemExit('imported')")
    registry = CodecRegistry()
    assert registry.knows("acme.flip")
    assert registry.names() == sorted({*BUILTINS, "acme.flip", "acme.bomb"})
    assert module not in sys.modules
    cls = registry.find("acme.flip")
    assert cls.name == "acme.flip"
    assert module in sys.modules
    assert "fake_bomb" not in sys.modules
    assert not registry.knows("acme.flip2")
    assert not registry.knows("acme")
    assert str(registry.provider(cls())) == "acme.flip=acme-codec==1.0"
    assert registry.provider(ZStandard()) is None


def test_files_go_round(install):
    install("acme-codec", "fake_acme", "acme.flip")
    file = streamxf.encode(b"data" * 100, "acme.flip:mask=15+zstd")
    assert streamxf.decode(file) == b"data" * 100
    assert take_apart(file).chain == b"acme.flip/1?mask=15\nstreamxf.zstd/1"
    assert str(Chain.parse("acme.flip:mask=15")) == "acme.flip:mask=15,effort=1"


def test_allow_list(install):
    module = install("acme-codec", "fake_acme", "acme.flip")
    for allow in ([], ["other.codec"]):
        with pytest.raises(CodecNotAllowedError, match=r"acme-codec==1\.0.*allow="):
            CodecRegistry(allow).find("acme.flip")
    assert module not in sys.modules
    assert CodecRegistry(["acme.flip"]).find("acme.flip").name == "acme.flip"
    assert CodecRegistry([]).find("streamxf.zstd") is ZStandard
    with pytest.raises(DescriptorError):
        CodecRegistry(["NotAName"])


def test_two_packages_with_one_name(install):
    install("acme-codec", "fake_acme", "acme.flip")
    install("evil-codec", "fake_evil", "acme.flip")
    with pytest.raises(DuplicateCodecError, match=r"(acme|evil)-codec==1\.0.*(acme|evil)-codec==1\.0"):
        CodecRegistry().find("acme.flip")
    assert not {"fake_acme", "fake_evil"} & set(sys.modules)


def test_one_package_seen_twice_is_one(install):
    install("acme-codec", "fake_acme", "acme.flip", folder="one")
    install("acme-codec", "fake_acme", "acme.flip", folder="two")
    assert CodecRegistry().find("acme.flip").name == "acme.flip"


def test_built_ins_cannot_be_replaced(install):
    install("evil-codec", "fake_evil", "streamxf.checksum")
    registry = CodecRegistry()
    assert registry.find("streamxf.checksum") is ChecksumClass
    assert "fake_evil" not in sys.modules
    with pytest.raises(DuplicateCodecError, match=r"yourcompany.checksum"):
        registry.register(type("Mine", (Checksum,), {}))


def test_registering_by_hand(install):
    install("acme-codec", "fake_acme", "acme.flip")
    registry = CodecRegistry()
    mine = type("Mine", (Checksum,), {"name": "mine.sum"})
    registry.register(mine)
    registry.register(mine)
    assert registry.find("mine.sum") is mine
    with pytest.raises(DuplicateCodecError):
        registry.register(type("Mine", (Checksum,), {"name": "mine.sum"}))
    with pytest.raises(DuplicateCodecError):
        registry.register(type("Mine", (Checksum,), {"name": "acme.flip"}))
    with pytest.raises(DescriptorError):
        registry.register(type("Mine", (Checksum,), {"name": "Bad Name"}))
    assert not CodecRegistry().knows("mine.sum")


@pytest.mark.parametrize(
    ("source", "value", "says"),
    [
        (None, "fake_wrong:Outer", "not a streamxf.Codec"),
        (None, "fake_wrong:Missing", "cannot be imported"),
        (None, "fake_wrong", "not a streamxf.Codec"),
        (None, "fake_missing:Flip", "cannot be imported"),
        ("import fake_missing", None, "cannot be imported"),
        ("raise RuntimeError('a library is missing')", None, "a library is missing"),
        ("def f(:", None, "cannot be imported"),
        ("Flip = print", None, "not a streamxf.Codec"),
        ("from streamxf import Checksum as Flip", None, "whose name is 'acme.wrong'"),
        ("from streamxf import Codec\nclass Flip(Codec): pass", None, "whose name is"),
    ],
)
def test_what_an_entry_point_names_must_be_that_codec(install, source, value, says):
    install("wrong-codec", "fake_wrong", "acme.wrong", source=source, value=value)
    with pytest.raises(UnknownCodecError, match=says) as caught:
        CodecRegistry().find("acme.wrong")
    assert "wrong-codec==1.0" in str(caught.value)


def test_entry_points_may_name_a_class_in_a_class(install):
    install("acme-codec", "fake_acme", "acme.flip", value="fake_acme:Outer.Flip")
    assert CodecRegistry().find("acme.flip").name == "acme.flip"


def test_another_version_than_the_data_has(install):
    install("acme-codec", "fake_acme", "acme.flip", version=3)
    registry = CodecRegistry()
    assert registry.build(Descriptor.parse("acme.flip/3?mask=7"), KeyRing()).mask == 7
    with pytest.raises(UnknownCodecError, match="the data has version 2, the installed codec reads version 3"):
        registry.build(Descriptor.parse("acme.flip/2"), KeyRing())


@pytest.mark.parametrize(
    "text",
    [
        *("acme.flip/1#mask=7", "acme.flip/1?mask=3#mask=7", "acme.flip/1?mask=3#mask=3", "acme.flip/1#mask=255"),
        *("acme.flip/1?effort=2#effort=3", "acme.flip/1?effort=1", "acme.flip/1?mask=3#other=7"),
    ],
)
def test_what_decodes_comes_from_the_bound_part_only(install, text):
    """Anyone who can write to the storage can edit a fragment: were it believed, `mask` would decode to other bytes."""
    install("acme-codec", "fake_acme", "acme.flip")
    with pytest.raises(DescriptorError, match=r"wrong side of '#'|no parameter 'other'"):
        CodecRegistry().build(Descriptor.parse(text))


@pytest.mark.parametrize("mask", ["255", "03", "+3", "-0", "0x3", "3.0", "3_0", " 3", "", "true", "\u0663", "9" * 5000])
def test_a_parameter_has_one_spelling(install, mask):
    """Two spellings would be two headers, and two decoders could disagree on which of them counts."""
    install("acme-codec", "fake_acme", "acme.flip")
    assert CodecRegistry().build(Descriptor.parse("acme.flip/1?mask=3")).mask == 3
    assert CodecRegistry().build(Descriptor.parse("acme.flip/1?mask=-3")).mask == -3
    assert CodecRegistry().build(Descriptor.parse("acme.flip/1")).mask == 255
    with pytest.raises(DescriptorError):
        CodecRegistry().build(Descriptor.parse(f"acme.flip/1?mask={mask}"))


def test_codecs_under_reserved_names_are_not_found(install):
    module = install("evil-codec", "fake_evil", "streamxf.delta")
    registry = CodecRegistry()
    assert not registry.knows("streamxf.delta")
    with pytest.raises(UnknownCodecError):
        registry.find("streamxf.delta")
    assert module not in sys.modules


def test_an_unknown_codec_names_what_to_install():
    with pytest.raises(UnknownCodecError, match=r"'acme.gone'.*entry-point group 'streamxf.codecs'"):
        CodecRegistry().find("acme.gone")
    provider = Provider.parse("acme.gone=acme-gone==2.1")
    with pytest.raises(UnknownCodecError, match=r"acme-gone==2\.1"):
        CodecRegistry().find("acme.gone", [provider])
    with pytest.raises(UnknownCodecError) as caught:
        CodecRegistry().find("acme.gone", [Provider.parse("acme.else=other==1")])
    assert "other==1" not in str(caught.value)


def test_a_file_of_an_unknown_codec(install):
    parts = take_apart(encode(b"data", [Checksum()]))
    with pytest.raises(UnknownCodecError, match=r"acme\.gone"):
        streamxf.open(io.BytesIO(parts.change(chain=b"acme.gone/1").pack()))


@pytest.mark.parametrize(
    "text",
    [
        *("", "a.b", "a.b=", "a.b=name", "a.b=name==", "a.b=na me==1", "a.b=name==1; rm", "a.b=name==1\n"),
        "a.b=" + "n" * 200,
    ],
)
def test_providers_are_read_with_care(text):
    assert Provider.parse(text) is None
    assert providers_in([text, None, 3, "a.b=name==1.0"]) == [Provider("a.b", "name==1.0")]
    assert providers_in(None) == []


@dataclass(frozen=True)
class Switched(streamxf.ZStandard):
    """Has parameters of all types."""

    name: ClassVar[str] = "acme.switched"
    on: bool = True
    off: bool = False
    word: str = "a"


def test_parameters_of_each_type_are_text_in_descriptors() -> None:
    assert str(Switched(4, on=False, off=True, word="b").descriptor()) == (
        "acme.switched/1?off=true&on=false&word=b#level=4"
    )
