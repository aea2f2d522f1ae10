"""`python -m shardctl`, and the console script of a wheel with libraries: become the program."""

from __future__ import annotations

import os
import sys

from shardctl._errors import ProgramNotFound
from shardctl._program import environment, program


def main() -> int:
    """Replaces this process, so that signals, ranks and exit codes are the program's own. Returns only on failure."""
    path = "shardctl"
    try:
        path = program()
        os.execve(path, [path, *sys.argv[1:]], environment())
    except ProgramNotFound as error:
        print(f"shardctl: error: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"shardctl: error: cannot run '{path}': {error.strerror}", file=sys.stderr)
        return 8


if __name__ == "__main__":
    sys.exit(main())
