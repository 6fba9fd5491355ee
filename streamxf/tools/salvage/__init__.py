"""What can still be read of a damaged checkpoint."""

from streamxf.tools.salvage.result import Lost as Lost
from streamxf.tools.salvage.result import Salvaged as Salvaged
