"""Reading every byte of a checkpoint, to find out what is damaged."""

from streamxf.tools.damage import Damage as Damage
from streamxf.tools.verify.report import VerifyReport as VerifyReport
