"""Run as a script: reads lines of JSON, each a shell's command and the arguments of several commands of streamxf, runs
them one after the other, and prints what came of them. A process of its own may have fewer rights, or a small disk.
"""

import contextlib
import io
import json
import subprocess
import sys

from streamxf.cli.__main__ import main


def one(arguments: list[str]) -> list[object]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return [code, out.getvalue(), err.getvalue()]


if __name__ == "__main__":
    for line in sys.stdin:
        before, commands = json.loads(line)
        subprocess.run(["sh", "-c", before], check=True)
        print(json.dumps([one(arguments) for arguments in commands]), flush=True)
