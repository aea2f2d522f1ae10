"""The time of calls that take 5 ms each is hidden: a gather and the reading verbs take little more than the bytes do.

    latency.py SHARDCTL SLOW_DISK [--bytes MIB]

Compares each verb with the same on a disk of the same kind that answers at once, in the same run, both with nothing in
the page cache. A gather through the page cache takes at most 1.5 times the time at once, and the round trips of opening
besides. Without a page cache the kernel reads nothing ahead, so the bound there is 3 times.
"""
import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from calls import write_model
from disk import SKIPPED, SlowDisk, why_not

DELAY_US = 5000
OPENING_S = 0.5  # Round trips of listing, opening and checking 64 files.


def seconds(tool: str, disk: SlowDisk, out: Path, verb: str, name: str) -> float:
    line = [tool, verb, disk.at / name]
    if verb == "gather":
        line += ["-o", out / "out.safetensors", "--no-fsync"]
    disk.forget()
    begin = time.monotonic()
    done = subprocess.run([str(word) for word in line], capture_output=True, text=True)
    taken = time.monotonic() - begin
    assert done.returncode == 0, f"{line}: exit {done.returncode}: {done.stderr}"
    (out / "out.safetensors").unlink(missing_ok=True)
    return taken


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("tool")
    options.add_argument("program")
    options.add_argument("--bytes", type=int, default=1024, help="of the checkpoint, in MiB")
    chosen = options.parse_args()
    if reason := why_not():
        print(f"SKIPPED: no slow disk can be mounted: {reason}")
        return SKIPPED
    failed = 0
    outputs = "/dev/shm" if os.path.isdir("/dev/shm") else None  # They are not measured.
    with tempfile.TemporaryDirectory() as text, tempfile.TemporaryDirectory(dir=outputs) as out:
        folder = Path(text)
        model = folder / "model.safetensors"
        write_model(model, [[chosen.bytes * 8, 4096]] * 8)
        (folder / "below").mkdir()
        for name in ("dcp", "torch-ranks"):
            subprocess.run([chosen.tool, "split", model, "-o", folder / "below" / name, "--to", name, "--ranks", "64", "-q"],
                           check=True)
        for switches in ((), ("direct",)):
            for name in ("dcp", "torch-ranks"):
                for verb in ("inspect", "verify", "gather"):
                    taken = []
                    for delay in (0, DELAY_US):
                        with SlowDisk(chosen.program, folder, f"delay={delay}", *switches) as disk:
                            taken.append(min(seconds(chosen.tool, disk, Path(out), verb, name) for _ in range(2)))
                    at_once, slow = taken
                    is_ahead = verb == "gather" and not switches
                    most = (1.5 if is_ahead else 3) * at_once + OPENING_S
                    how = " ".join(switches) or "cached"
                    print(f"{verb} of {name}, {how}: {at_once:.2f} s at once, {slow:.2f} s with {DELAY_US // 1000} ms a call")
                    if slow > most:
                        print(f"FAIL: at most {most:.2f} s")
                        failed += 1
    print(f"{failed} problems")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
