"""Two checkpoints compared: which items differ, and how far."""

from streamxf.tools.diff.difference import Change as Change
from streamxf.tools.diff.difference import Difference as Difference
from streamxf.tools.diff.difference import Distance as Distance
