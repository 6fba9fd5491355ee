"""What tools use of storage: places, what they can do, and small files in them; docs/api.md, "For tools"."""

from streamxf.storage.abilities import Abilities, AbilitiesLike
from streamxf.storage.disk import Mount
from streamxf.storage.lock import locked
from streamxf.storage.opening import Location, open_storage
from streamxf.storage.small import put_small, read_small, small_files, small_names
from streamxf.storage.storage import Entries, Storage, StorageEntry, is_url

__all__ = ["Abilities", "AbilitiesLike", "Entries", "Location", "Mount", "Storage", "StorageEntry", "is_url"]
__all__ += ["locked", "open_storage", "put_small", "read_small", "small_files", "small_names"]
