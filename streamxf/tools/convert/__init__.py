"""From one format or chain to another, block by block: pack, unpack, transcode."""

from streamxf.tools.convert.conversion import Converted as Converted
from streamxf.tools.convert.unpack import Unpacked as Unpacked
