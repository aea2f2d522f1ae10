"""The steps of docs/rank-files.md: C++ trains on 4 ranks and saves a file per rank, shardctl reshards the files for 2
ranks, C++ and Python load them on 2 ranks, and the losses are the same.

Usage: rank_files_with_python.py RANK_FILES_GUIDE SHARDCTL PAGE. Exit code 77: torch is not installed.
"""
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from page_commands import run_as_printed

try:
    import torch  # noqa: F401
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

GUIDE, SHARDCTL, PAGE = sys.argv[1:4]
STEPS = 3
# Threads of gloo that outlive the process group can abort the process while the interpreter ends.
NO_THREADS_LEFT = """
import contextlib
from pathlib import Path
for name in Path("/proc/self/task").glob("*/comm"):
    with contextlib.suppress(OSError):  # Other threads may end meanwhile.
        assert not name.read_text().startswith("pt_gloo"), "a thread of gloo is left"
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(ranks: int, *command) -> list[tuple[str, str, int]]:
    """Output, errors and exit code of each rank."""
    common = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    started = [subprocess.Popen(command, env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(ranks)]
    return [(*process.communicate(timeout=600), process.returncode) for process in started]


def losses(ranks: int, *command) -> dict[int, float]:
    ended = start(ranks, *command)
    for output, errors, code in ended:
        assert code == 0, f"{command} on {ranks} ranks: {output}{errors}"
    lines = [line.split() for line in ended[0][0].splitlines()]
    return {int(line[1]): float(line[3]) for line in lines if line[0] == "step"}


def shardctl(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([SHARDCTL, *map(str, arguments)], text=True, capture_output=True)


def files_of(folder: Path) -> list[dict]:
    done = shardctl("inspect", folder, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["files"]


class RankFiles(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="shardctl-rank-files-")
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = Path(cls.temporary.name)
        cls.losses = losses(4, GUIDE, "new", cls.folder / "4", str(STEPS))
        done = shardctl("reshard", cls.folder / "4", "-o", cls.folder / "2", "--ranks", "2")
        assert done.returncode == 0, done.stderr
        cls.script = cls.folder / "rank_files.py"
        code = re.search(r"^```python rank_files\.py\n(.*?)^```", Path(PAGE).read_text(), re.M | re.S)
        cls.script.write_text(code[1] + NO_THREADS_LEFT)

    def expect_same_losses(self, found: dict[int, float]) -> None:
        self.assertEqual(sorted(found), [3, 4, 5])
        for step, loss in found.items():
            self.assertAlmostEqual(loss, self.losses[step], delta=1e-12)

    def test_training_lowers_the_loss(self):
        self.assertEqual(sorted(self.losses), list(range(2 * STEPS)))
        self.assertLess(self.losses[5], self.losses[0])

    def test_cpp_continues_on_two_ranks(self):
        self.expect_same_losses(losses(2, GUIDE, "continue", self.folder / "2", str(STEPS)))

    def test_python_continues_on_two_ranks(self):
        self.expect_same_losses(losses(2, sys.executable, self.script, self.folder / "2", str(STEPS)))

    def test_inspect_reports_the_ranks_of_files(self):
        for ranks in (4, 2):
            found = [(file["rank"], file["world_size"], file["local_rank"], file["local_world_size"])
                     for file in files_of(self.folder / str(ranks))]
            self.assertEqual(found, [(rank, ranks, rank, ranks) for rank in range(ranks)])

    def test_the_pages_commands_run_as_printed(self):
        with tempfile.TemporaryDirectory(prefix="shardctl-rank-files-") as folder:
            Path(folder, "rank_files.py").write_text(self.script.read_text())
            outputs = run_as_printed(Path(PAGE), Path(folder), Path(GUIDE).resolve().parent, Path(SHARDCTL).resolve())
        first, _, cpp, python = (re.findall(r"^step (\d+) loss (\S+)$", output, re.M) for output in outputs)
        self.assertEqual([step for step, _ in first], list("012345"))
        for again in (cpp, python):
            for (step, loss), (other, expected) in zip(again, first[STEPS:], strict=True):
                self.assertEqual(step, other)
                self.assertAlmostEqual(float(loss), float(expected), delta=1e-12)

    def test_a_load_on_other_ranks_names_the_mismatch(self):
        other = self.folder / "other"
        other.mkdir()
        for rank in range(2):  # The names of a save on 2 ranks, but the files of one on 4.
            (other / f"rank-{rank:05}-of-00002.pt").write_bytes(
                (self.folder / "4" / f"rank-{rank:05}-of-00004.pt").read_bytes())
        for _, errors, code in start(2, GUIDE, "continue", other, str(STEPS)):
            self.assertNotEqual(code, 0)
            self.assertIn("Local world size at save time was 4, but at load time was 2", errors)

    def test_verify_warns_of_a_file_under_another_ranks_name(self):
        swapped = self.folder / "swapped"
        swapped.mkdir()
        names = ["rank-00000-of-00002.pt", "rank-00001-of-00002.pt"]
        for name, other in zip(names, reversed(names)):
            (swapped / name).write_bytes((self.folder / "2" / other).read_bytes())
        done = shardctl("verify", swapped)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("warning rank_mismatch rank-00000-of-00002.pt: the file of rank 1 has the name of rank 0's file",
                      done.stdout + done.stderr)
        self.assertEqual([file["rank"] for file in files_of(swapped)], [1, 0])
        self.assertNotIn("rank_mismatch", shardctl("verify", self.folder / "2").stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
