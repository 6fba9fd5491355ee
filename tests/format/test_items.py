"""Names and paths that can be, and the sizes of items."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf.errors import MetadataError
from streamxf.format.items import Chunk, ObjectItem, Place, TensorItem, check_name

PLACE = Place("file", 3, 7, ())


@pytest.mark.parametrize(
    "path", ["a", "a/b", "__0_0.distcp", "a b/c", "größe", "a/b:c", "..a", "a..", "...", "~", "-", "a" * 4096]
)
def test_paths_inside(path: str) -> None:
    assert Place.check_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/a", "a/", "a//b", ".", "..", "./a", "a/.", "a/..", "../a", "a/../b", "a/../../b"),
        *("a\\b", "..\\a", "C:", "C:a", "file:a", "s3://bucket/a", "a\0b", "a\nb", "a\x1f", "a\x7f", "a\x85", "a\x9f"),
        *("%2e%2e/a", "a%00", "a?b", "a#b", "\ud800", "a" * 4097, None, 7, b"a", ["a"]),
    ],
    ids=ascii,
)
def test_paths_that_lead_out_or_are_none(path: object) -> None:
    with pytest.raises(MetadataError, match="outside the checkpoint"):
        Place.check_path(path)


@given(path=st.text(max_size=40))
def test_no_path_leads_out(path: str) -> None:
    try:
        parts = Place.check_path(path).split("/")
    except MetadataError:
        return
    assert not {"", ".", ".."} & set(parts)
    assert not set(path) & set("\\%?#\0\n")


def test_what_is_shown_of_a_path_is_short() -> None:
    with pytest.raises(MetadataError) as caught:
        Place.check_path("../" + "x" * 4000)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("name", ["a", "größe", "\U0001f600", "../a", "a/b", " ", "\n", "x" * 10_000])
def test_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["\ud800", "a\udfff", None, 7, b"a", ("a",)])
def test_names_that_are_none(name: object) -> None:
    with pytest.raises(MetadataError, match="name"):
        check_name(name)


def test_sizes_and_places() -> None:
    chunks = (Chunk((0,), (2,), PLACE, False), Chunk((2,), (3,), PLACE._replace(at=10), False))
    tensor = TensorItem("w", "float32", (5,), chunks)
    assert tensor.size == 20
    assert tensor.places == (PLACE, PLACE._replace(at=10))
    assert TensorItem("q", "quint4x2", (5,), ()).size == 0
    assert ObjectItem("o", PLACE).places == (PLACE,)


def test_values_of_one_container_are_known_by_it():
    """Or its stream would be decoded for each of them."""
    one, two = (Place("file", 0, 9, (), number=3, span=span) for span in ((0, 2), (2, 5)))
    assert one.container == two.container != one._replace(number=4).container
