"""torch calls `install` when it is imported, by its entry-point group ``torch.backends``.

This is a module beside the package, and asks for nothing but ``STREAMXF_CHAIN``, because an error in it stops the
import of torch. A broken installation of streamxf, or a folder of that name that is found first, must not do that to
anybody who has not set the variable.
"""

import os


def install() -> None:
    """Install the chain in ``STREAMXF_CHAIN``, if there is one."""
    if os.environ.get("STREAMXF_CHAIN"):
        from streamxf.environment import install_from_environment

        install_from_environment()
