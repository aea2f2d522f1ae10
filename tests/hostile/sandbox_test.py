"""If the system refuses the HDF5 parser its sandbox, the file is not parsed: SHARDCTL, and HDF5_PYTHON for a file.

A filter of this script makes seccomp(2) and prctl(PR_SET_SECCOMP) fail in the program, as they do on kernels and in
containers without seccomp.
"""
import ctypes
import os
import platform
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

SHARDCTL, PYTHON = os.environ["SHARDCTL"], os.environ.get("HDF5_PYTHON")
NUMBERS = {"x86_64": (157, 317), "aarch64": (167, 277)}  # Constants of prctl and seccomp.
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER_MODE = 38, 22, 2
ALLOW, FAIL = 0x7FFF0000, 0x00050000 | 22  # EINVAL
LOAD, EQUALS, RETURN = 0x20, 0x15, 0x06
SKIPPED = 77


def filter_program() -> bytes:
    """Fails seccomp, and prctl whose first argument is PR_SET_SECCOMP; allows everything else."""
    prctl, seccomp = NUMBERS[platform.machine()]
    steps = [(LOAD, 0, 0, 0), (EQUALS, 4, 0, seccomp), (EQUALS, 0, 2, prctl), (LOAD, 0, 0, 16), (EQUALS, 1, 0, PR_SET_SECCOMP),
             (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, FAIL)]
    return b"".join(struct.pack("<HBBI", *step) for step in steps)


def refuse_sandboxes() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    code = filter_program()
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or libc.prctl(PR_SET_SECCOMP, FILTER_MODE, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot install a filter")


def inspect(path: Path, prepare) -> subprocess.CompletedProcess:
    return subprocess.run([SHARDCTL, "inspect", path], preexec_fn=prepare, capture_output=True, text=True, check=False)


def main() -> int:
    if PYTHON is None or platform.machine() not in NUMBERS:
        print("SKIP: needs HDF5_PYTHON, and x86-64 or ARM")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.h5"
        made = subprocess.run([PYTHON, Path(__file__).with_name("make_hdf5.py"), "several", "8", path], check=False)
        if made.returncode != 0:
            print("SKIP: HDF5_PYTHON has no h5py")
            return SKIPPED
        if inspect(path, None).returncode != 0:
            print("SKIP: this program has no HDF5, or no sandbox here")
            return SKIPPED
        try:
            refused = inspect(path, refuse_sandboxes)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"SKIP: {error}")
            return SKIPPED
        print(f"exit {refused.returncode}: {refused.stderr.strip()}")
        return 0 if 1 <= refused.returncode <= 8 and "Traceback" not in refused.stderr else 1


if __name__ == "__main__":
    sys.exit(main())
