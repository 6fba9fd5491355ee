"""What tests, and the processes that they start, do not take over from whoever runs them, and where there is memory."""

import atexit
import multiprocessing
import os
import shutil
import signal
import tempfile
from pathlib import Path

# What changes what Python, pytest and rich do and print, where requests go, and which keys and accounts are found.
_UNSET = {
    *("COLUMNS", "LINES", "TERMINAL_WIDTH", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "COLORTERM", "GITHUB_ACTIONS"),
    *("TTY_COMPATIBLE", "TTY_INTERACTIVE", "PYTEST_ADDOPTS"),
    *("PYTHONWARNINGS", "PYTHONOPTIMIZE", "PYTHONIOENCODING", "PYTHONDEVMODE"),
    *("STREAMXF_CHAIN", "STREAMXF_KEYS", "STREAMXF_PASSPHRASE", "STREAMXF_TRACEBACK"),
    *("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_CA_BUNDLE"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_KMS"),
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
}
_SET = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "FSSPEC_CONFIG_DIR": os.devnull,
}
_UMASK = 0o022
_LONG = 40  # characters of a temporary folder


def leave() -> None:
    """Make this process, and what it starts, like that of anybody else."""
    for name in _UNSET:
        os.environ.pop(name, None)
    os.environ.update(_SET)
    os.umask(_UMASK)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
    if len(tempfile.gettempdir()) > _LONG:
        # Python's forkserver binds a socket some folders below, whose address has room for about 100 bytes
        folder = tempfile.mkdtemp(prefix="streamxf-", dir="/tmp")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        multiprocessing.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]


def in_memory(room: int) -> Path | None:
    """A folder in memory, if there is one that takes so many bytes."""
    shared = Path("/dev/shm")
    roomy = shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > room
    return shared if roomy else None
