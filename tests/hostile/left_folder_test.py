"""--resume (SHARDCTL) over a temporary folder that an attacker has created or changed: no link in it is followed
for writing, and notes that are no journal of a rank are not read. Needs only Python's standard library."""
import os
import sys
import tempfile
import unittest
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "resume"))

import resume  # noqa: E402
from bounded import SHARDCTL, Ended, cost_problems, run  # noqa: E402
from build import sparse  # noqa: E402

resume.TOOL = SHARDCTL
MIB = 1 << 20
NOTE = "~note.journal.{:06}.0"


class LeftFolder(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.pool = ProcessPoolExecutor(1, get_context("spawn"))

    @classmethod
    def tearDownClass(cls) -> None:
        cls.pool.shutdown()

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="left-")
        self.addCleanup(folder.cleanup)
        self.work = Path(folder.name)
        self.output = self.work / "dst"
        self.output.mkdir()
        self.source = self.work / "in.safetensors"
        resume.write_safetensors(self.source, 8, 4 * MIB)
        self.line = ["convert", self.source, "-o", self.output / "out.safetensors", "--no-fsync", "-j", "1"]

    def interrupted(self) -> Path:
        resume.kill_in_the_middle(self.line, self.output)
        (sibling,) = resume.left(self.output)
        return sibling

    def made(self) -> Path:
        """A folder such as an unpacked archive brings."""
        sibling = self.output / ".out.safetensors.shardctl-0123abcd"
        sibling.mkdir(mode=0o700)
        return sibling

    def resumed(self, *codes: int) -> Ended:
        command = [SHARDCTL, *map(str, self.line), "--resume"]
        ended = self.pool.submit(run, command, self.work).result()
        self.assertIn(ended.code, codes, (self.work / "stderr").read_text())
        self.assertEqual(cost_problems(ended), [])
        if ended.code == 0:
            self.assertEqual(resume.digest(self.output / "out.safetensors"), resume.digest(self.source))
        return ended

    def test_notes_of_nothing_are_not_read(self) -> None:
        sibling = self.made()
        for number in range(8):
            sparse(sibling / NOTE.format(number), 256 * MIB)
        self.resumed(0)

    def test_notes_that_begin_as_journals_are_read_up_to_a_limit(self) -> None:
        sibling = self.made()
        magic = b"shardctl.journal/1"
        for number in range(8):
            begin = (200 * MIB).to_bytes(8, "little") + bytes(8) + len(magic).to_bytes(8, "little") + magic
            sparse(sibling / NOTE.format(number), 256 * MIB, begin)
        self.resumed(0)

    def test_30000_notes(self) -> None:
        sibling = self.made()
        for number in range(30_000):
            (sibling / NOTE.format(number)).touch()
        self.resumed(0)

    def test_a_staged_file_is_not_written_through_a_hard_link(self) -> None:
        staged = self.interrupted() / "out.safetensors"
        victim = self.work / "victim"
        victim.write_bytes(b"untouched" * 1000)
        staged.unlink()
        os.link(victim, staged)
        self.resumed(5)
        self.assertEqual(victim.read_bytes(), b"untouched" * 1000)

    def test_a_staged_file_is_not_written_through_a_link(self) -> None:
        staged = self.interrupted() / "out.safetensors"
        victim = self.work / "victim"
        victim.write_bytes(b"untouched" * 1000)
        staged.unlink()
        staged.symlink_to(victim)
        self.resumed(5)
        self.assertEqual(victim.read_bytes(), b"untouched" * 1000)

    def test_what_nobody_changed_is_resumed(self) -> None:
        self.interrupted()
        self.resumed(0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
