"""Fails system calls one by one, with strace, in a real run: the exit code must say so and the destination stay as it was.

    fault_sweep.py SHARDCTL

For each call and error below, run k fails the k-th such call, until a run ends without having met it. Reads are failed
on the input alone: the loader reads libraries with the same call.
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from kill_loop import write_safetensors

FAULTS = [("pwrite64", "ENOSPC", 6), ("pwrite64", "EIO", 6), ("fsync", "EIO", 6), ("fallocate", "ENOSPC", 6), ("mkdirat", "EACCES", 6),
          ("renameat2", "EIO", 6), ("fchmod", "EPERM", 6), ("pread64", "EIO", 3), ("pread64", "EINTR", 0), ("pwrite64", "EINTR", 0)]


def main() -> None:
    tool = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_safetensors(work / "in.safetensors", 1, 8, 1 << 20)
        for call, error, wanted in FAULTS:
            for k in range(1, 1000):
                destination, log = work / "dst", work / "log"
                subprocess.run(["rm", "-rf", destination], check=True)
                done = subprocess.run(
                    ["strace", "-f", "-o", log, *(["-P", work / "in.safetensors"] if call == "pread64" else []), "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={k}", tool, "split",
                     work / "in.safetensors", "-o", destination, "--ranks", "2", "-j", "1", "-q"], capture_output=True, text=True)
                met = "(INJECTED)" in log.read_text()
                code = wanted if met else 0
                assert done.returncode == code, f"{call} {k} {error}: exit {done.returncode}, not {code}\n{done.stderr}"
                assert destination.exists() == (code == 0), f"{call} {k} {error}: destination exists: {destination.exists()}"
                if code:
                    left = [p.name for p in work.iterdir() if re.match(r"\.dst\.shardctl", p.name)]
                    assert not left or call == "mkdirat", f"{call} {k} {error}: left {left}"
                if not met:
                    break
            print(f"{call} {error}: {k - 1} calls failed one by one, exit {wanted}")


if __name__ == "__main__":
    main()
