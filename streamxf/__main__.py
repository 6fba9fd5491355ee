"""``python -m streamxf``; and ``torchrun -m streamxf verify``, where all ranks of a job work, and the first prints."""

import os
import sys

from streamxf.cli import ranks
from streamxf.cli.__main__ import main
from streamxf.cli.exits import USAGE

if __name__ == "__main__":
    if not ranks.join():
        print("streamxf: RANK and WORLD_SIZE are not those of a rank under torchrun", file=sys.stderr)
        sys.exit(USAGE)
    if ranks.together and sys.argv[1:2] != ["verify"]:
        if ranks.first_to_say(text := "streamxf: the ranks of a job verify together, and do nothing else so"):
            print(text, file=sys.stderr)
        sys.exit(USAGE)
    if ranks.silent:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    sys.exit(main())
