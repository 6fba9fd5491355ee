"""From one format or chain to another, block by block: pack, unpack, transcode."""

from streamxf.tools.convert.result import Converted as Converted
from streamxf.tools.convert.result import Unpacked as Unpacked
