"""torch calls `install` when it is imported, by its entry-point group ``torch.backends``.

This is a module beside the package, and asks for nothing but variables, because an error in it stops the import of
torch. A broken installation of streamxf, or a folder of that name that is found first, must not do that to anybody who
has set neither ``STREAMXF_CHAIN`` nor ``STREAMXF_KEYS``.
"""

import os
import sys

_TOLD = ("FOLDER", "SAVE_ID", "STEP")  # by `streamxf follow` to what it runs
_SUFFIXES = ("CHAIN", "KERNEL", "KEYS", "PASSPHRASE", "SKIP", "STRICT", "TRACEBACK", "WORKERS", *_TOLD)
KNOWN = [f"STREAMXF_{suffix}" for suffix in _SUFFIXES]


def install() -> None:
    """Install what ``STREAMXF_CHAIN`` and ``STREAMXF_KEYS`` ask for, if they do."""
    keys = os.environ.get("STREAMXF_KEYS", "")
    for name in os.environ:
        if name.startswith("STREAMXF_") and name not in KNOWN and f"env:{name}" not in keys.split():
            _warn_of(name)
    if not os.environ.get("STREAMXF_CHAIN") and not keys:
        return
    try:
        from streamxf.environment import install_from_environment

        install_from_environment()
    except Exception as error:  # torch would show how to turn this off, and everything be saved unencrypted
        text = f"{type(error).__name__}: {error}"
        raise SystemExit(f"streamxf: STREAMXF_CHAIN or STREAMXF_KEYS is set, and streamxf fails: {text}") from None


def _warn_of(name: str) -> None:
    """Say that a variable is none of streamxf's: misspelt, it would leave checkpoints unencrypted."""
    from contextlib import suppress
    from difflib import get_close_matches

    for near in get_close_matches(name.removeprefix("STREAMXF_"), _SUFFIXES, 1):
        with suppress(OSError, ValueError):  # a stream that is full or closed stops nobody's import
            said = f"the variable {name!r:.80} is not one of streamxf's; STREAMXF_{near} may be meant"
            print(f"streamxf: warning: {said}", file=sys.stderr)
