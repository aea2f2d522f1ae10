"""On a system that lets no process filter its own system calls, no HDF5 file is read, and env shows it.

Environment: SHARDCTL is the program, SHARD_DATA the folder tests/data.
"""
import ctypes
import json
import os
import platform
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SHARDCTL, DATA = os.environ["SHARDCTL"], Path(os.environ["SHARD_DATA"])
LOAD, JUMP_IF, RETURN = 0x20, 0x15, 0x06
SECCOMP, PRCTL, SET_SECCOMP, SET_NO_NEW_PRIVS, FILTER = 317, 157, 22, 38, 2
ALLOW, EPERM = 0x7FFF0000, 0x00050001

# Refuses seccomp() and prctl(PR_SET_SECCOMP): each line is a code, jumps if true and false, and a number.
PROGRAM = [(LOAD, 0, 0, 0), (JUMP_IF, 3, 0, SECCOMP), (JUMP_IF, 0, 3, PRCTL), (LOAD, 0, 0, 16), (JUMP_IF, 0, 1, SET_SECCOMP),
           (RETURN, 0, 0, EPERM), (RETURN, 0, 0, ALLOW)]


def forbid_filters() -> None:
    libc = ctypes.CDLL(None)
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *each) for each in PROGRAM))
    program = struct.pack("<HxxxxxxQ", len(PROGRAM), ctypes.addressof(code))
    if libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or libc.prctl(SET_SECCOMP, FILTER, program, 0, 0) != 0:
        os._exit(77)


def confined(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([SHARDCTL, *map(str, arguments)], capture_output=True, text=True, preexec_fn=forbid_filters)


@unittest.skipUnless(platform.machine() == "x86_64", "the numbers of calls are those of x86-64")
class WithoutSeccomp(unittest.TestCase):
    def test_hdf5_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for verb in (("inspect",), ("digest",), ("convert", "-o", Path(folder) / "x.pt")):
                done = confined(verb[0], DATA / "hdf5" / "h5py37-texts.h5", *verb[1:])
                self.assertEqual(done.returncode, 8, done.stderr)
                self.assertIn("cannot be confined", done.stderr)
                self.assertIn("seccomp", done.stderr)
        self.assertEqual(confined("inspect", DATA / "torch" / "state.pt").returncode, 0)

    def test_env_shows_it(self) -> None:
        self.assertFalse(json.loads(confined("env", "--json").stdout)["seccomp"])
        self.assertIn("HDF5 files cannot be read", confined("env").stdout)
        self.assertTrue(json.loads(subprocess.run([SHARDCTL, "env", "--json"], capture_output=True, text=True).stdout)["seccomp"])


if __name__ == "__main__":
    if confined("version").returncode == 77:
        print("skipped: this system allows no filters at all")
        sys.exit(77)
    unittest.main()
