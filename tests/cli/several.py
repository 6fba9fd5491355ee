"""Run as a script: runs the commands whose arguments it reads as JSON, one after the other, and prints what came of
them. A process of its own may have fewer rights, or a small disk.
"""

import contextlib
import io
import json
import sys

from streamxf.cli.__main__ import main


def one(arguments: list[str]) -> list[object]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return [code, out.getvalue(), err.getvalue()]


if __name__ == "__main__":
    json.dump([one(arguments) for arguments in json.load(sys.stdin)], sys.stdout)
