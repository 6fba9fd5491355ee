"""What a load that fails tells its caller to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamxf.errors import (
    AuthenticationError,
    CodecError,
    ContainerError,
    DescriptorError,
    IdentityError,
    MetadataError,
    StreamxfError,
)

_OF_METADATA = (AuthenticationError, DescriptorError, MetadataError)
_OF_ITEMS = (*_OF_METADATA, CodecError, ContainerError, IdentityError)

_ITEMS = "next: `streamxf verify` lists all that is damaged, `streamxf salvage` saves the rest"
_METADATA = "next: restore this file from a copy; if there is none, see `streamxf salvage --without-metadata`"


@contextmanager
def items_advised() -> Iterator[None]:
    """Add a note to errors that mean damage. Others say themselves what to do: give another key, say."""
    try:
        yield
    except _OF_ITEMS as error:
        error.add_note(_ITEMS)
        raise


def advise_on_metadata(error: StreamxfError) -> None:
    """The same for what is wrong with metadata. An `IdentityError` says there that it is another save's."""
    if isinstance(error, _OF_METADATA):
        error.add_note(_METADATA)
