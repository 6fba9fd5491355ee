"""New keys and names for a checkpoint, or new keys for a plain file, without touching its data."""

from streamxf.tools.rekey.recipients import Recipient as Recipient
from streamxf.tools.rekey.recipients import Recipients as Recipients
