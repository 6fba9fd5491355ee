"""New keys for a checkpoint or a plain file, without touching its data."""

from streamxf.tools.rekey.recipients import Recipient as Recipient
from streamxf.tools.rekey.recipients import Recipients as Recipients
