"""What tools use of storage: places, what they can do, names of files, and small files; docs/api.md, "For tools"."""

from streamxf.format.names import GLOBAL, is_metadata_name, is_run_file, made_by_saves, metadata_among, rank_of
from streamxf.storage.abilities import AbilitiesLike, Mount
from streamxf.storage.lock import locked
from streamxf.storage.opening import Location, open_storage
from streamxf.storage.small import put_small, read_small, small_files, small_names
from streamxf.storage.storage import Entries, Storage, is_url

__all__ = ["AbilitiesLike", "Entries", "Location", "Mount", "Storage", "is_url"]
__all__ += ["GLOBAL", "is_metadata_name", "is_run_file", "made_by_saves", "metadata_among", "rank_of"]
__all__ += ["locked", "open_storage", "put_small", "read_small", "small_files", "small_names"]
