"""Runs the commands of a page's `console elsewhere` blocks as printed, in an empty folder."""
import os
import re
import subprocess
import sys
from pathlib import Path


def commands_of(page: Path) -> list[str]:
    blocks = re.findall(r"^```console elsewhere\n(.*?)^```", page.read_text(), re.M | re.S)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def run_as_printed(page: Path, folder: Path, programs: Path, shardctl: Path) -> list[str]:
    """The output of each command. `folder` is empty. In it, build/dev/apps/examples is the folder `programs`; torchrun
    is the one beside this Python."""
    (folder / "build/dev/apps").mkdir(parents=True)
    (folder / "build/dev/apps/examples").symlink_to(programs)
    path = os.pathsep.join([str(Path(sys.executable).parent), str(shardctl.parent), os.environ["PATH"]])
    outputs = []
    for command in commands_of(page):
        done = subprocess.run(command, shell=True, cwd=folder, env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
                              text=True, capture_output=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        outputs.append(done.stdout)
    return outputs
