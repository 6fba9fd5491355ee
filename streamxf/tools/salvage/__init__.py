"""What can still be read of a damaged checkpoint."""

from streamxf.tools.damage import Damage as Damage
from streamxf.tools.salvage.fill import Salvaged as Salvaged
