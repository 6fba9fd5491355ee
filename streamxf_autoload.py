"""torch calls `install` when it is imported, by its entry-point group ``torch.backends``.

This is a module beside the package, and asks for nothing but two variables, because an error in it stops the import of
torch. A broken installation of streamxf, or a folder of that name that is found first, must not do that to anybody who
has set neither.
"""

import os


def install() -> None:
    """Install what ``STREAMXF_CHAIN`` and ``STREAMXF_KEYS`` ask for, if they do."""
    if not os.environ.get("STREAMXF_CHAIN") and not os.environ.get("STREAMXF_KEYS"):
        return
    try:
        from streamxf.environment import install_from_environment

        install_from_environment()
    except Exception as error:  # torch would show how to turn this off, and everything be saved unencrypted
        text = f"{type(error).__name__}: {error}"
        raise SystemExit(f"streamxf: STREAMXF_CHAIN or STREAMXF_KEYS is set, and streamxf fails: {text}") from None
