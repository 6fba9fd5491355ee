"""A checkpoint's metadata for `verify`: as a reader reads it, and also where there is no key for its MAC."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from streamxf.collector import collector_paused
from streamxf.container.header import Kind
from streamxf.dcp.load.items import RAW_SLACK, Expected
from streamxf.dcp.load.stored import Geometry
from streamxf.dcp.metadata import file as metadata_file
from streamxf.dcp.metadata.manifest import Manifest, split
from streamxf.dcp.metadata.unpickle import load_metadata
from streamxf.dcp.metadata.whole import check_items, check_places
from streamxf.dcp.objects.policy import Objects
from streamxf.descriptor import ENCRYPT
from streamxf.errors import MetadataError, PolicyError
from streamxf.keys import KeyRing

_WRAPPED = f"{ENCRYPT}/1#dek="


@dataclass(frozen=True, slots=True)
class Entry:
    """An item, or a shard of one, as the metadata describes it.

    Attributes
    ----------
    place : _StorageInfo
    expected : Expected or None
        None where only the item's place is known.
    geometry : Geometry or None
        Of a tensor.
    """

    name: str
    offset: tuple[int, ...] | None
    place: _StorageInfo
    expected: Expected | None
    geometry: Geometry | None

    @property
    def descriptors(self) -> tuple[str, ...]:
        """Of its codecs, in reader order."""
        return tuple(self.place.transform_descriptors or ())

    @property
    def stop(self) -> int:
        """Where it ends in its file."""
        return int(self.place.offset) + int(self.place.length)


@dataclass(frozen=True)
class Content:
    """A metadata file.

    Attributes
    ----------
    metadata : Metadata
    manifest : Manifest or None
    authenticated : bool
        False where a MAC was there and could not be checked.
    """

    metadata: Metadata
    manifest: Manifest | None
    authenticated: bool

    @collector_paused()
    def by_file(self) -> dict[str, list[Entry]]:
        """The items of each file, in the order of their places; also of files that hold none."""
        found: dict[str, list[Entry]] = {path: [] for path in self.manifest.files} if self.manifest is not None else {}
        geometries = _geometries(self.metadata)
        for index, place in (self.metadata.storage_data or {}).items():
            found.setdefault(place.relative_path, []).append(self._entry(index, place, geometries))
        for entries in found.values():
            entries.sort(key=lambda entry: (entry.place.offset, entry.place.length))
        return found

    def _entry(
        self, index: MetadataIndex, place: _StorageInfo, geometries: dict[tuple[str, tuple[int, ...]], Geometry]
    ) -> Entry:
        item = self.metadata.state_dict_metadata.get(index.fqn)
        writer = self.manifest.files[place.relative_path].writer if self.manifest is not None else None
        offset = tuple(index.offset) if index.offset is not None else None
        if isinstance(item, TensorStorageMetadata):
            geometry = geometries.get((index.fqn, offset or ()))
            size = Geometry.row_major(item.properties.dtype, tuple(item.size)).nbytes
            expected = Expected(index, Kind.TENSOR, 2 * size + RAW_SLACK, writer) if geometry is not None else None
            return Entry(index.fqn, offset, place, expected, geometry)
        limit = Objects().limit(place.length)
        expected = Expected(index, Kind.BYTES, limit, writer) if item is not None else None
        return Entry(index.fqn, offset, place, expected, None)


def _geometries(metadata: Metadata) -> dict[tuple[str, tuple[int, ...]], Geometry]:
    return {
        (name, tuple(chunk.offsets)): Geometry.row_major(item.properties.dtype, tuple(chunk.sizes))
        for name, item in metadata.state_dict_metadata.items()
        if isinstance(item, TensorStorageMetadata)
        for chunk in item.chunks
    }


def read_content(data: bytes, keys: KeyRing, rank: int | None, published: bool) -> Content:
    """Read a metadata file.

    Parameters
    ----------
    data : bytes
        The whole file.
    keys : KeyRing
        Without keys, and where there is a MAC, everything else is checked.
    rank : int or None
        Whose it is, by its name.
    published : bool
        Whether only metadata with a MAC is acceptable.

    Raises
    ------
    StreamxfError
        As `metadata_file.load`.
    """
    parts = split(data)
    manifest = parts.manifest if parts.key is not None and not len(keys) else None
    if manifest is None:
        try:
            metadata = metadata_file.load(data, keys, rank=rank, published=published)
        except PolicyError as error:
            if parts.has_manifest:
                raise
            raise MetadataError(error.message) from None  # it was cut, as far as anybody can tell
        return Content(metadata, metadata_file.manifest_of(metadata), True)
    metadata_file.key_fragment(manifest.key or "")
    metadata_file.check_rank(manifest, rank)
    metadata = load_metadata(parts.pickled)
    check_places(metadata, manifest)
    check_items(metadata, rank)
    _check_wrapped_keys(metadata, manifest)
    return Content(metadata, manifest, False)


def _check_wrapped_keys(metadata: Metadata, manifest: Manifest) -> None:
    """Compare the copies of each wrapped data key: without a key nothing else shows that one of them is damaged."""
    places = (metadata.storage_data or {}).values()
    texts = {text for place in places for text in place.transform_descriptors or () if text.startswith(_WRAPPED)}
    texts |= {manifest.key or ""}
    if len({text.partition("&")[0] for text in texts}) < len(texts):
        raise MetadataError("the metadata has a wrapped data key in two forms: one of them is damaged")
