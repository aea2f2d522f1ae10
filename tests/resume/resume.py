"""Kills shardctl in the middle and lets a second run continue: the output is right, and little is done twice.

    resume.py SHARDCTL [--rounds N] [--bytes N] [--kills N]

Without --rounds each behaviour once (tests named below); with it only the loop: jobs of N bytes, killed at random
points until one ends by itself, and the total work of all runs.
"""
import argparse
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import safetensors_files  # noqa: E402

TOOL = ""
MIB = 1 << 20


def write_safetensors(path: Path, tensors: int, size: int, seed: int = 1) -> None:
    """`tensors` of `size` bytes as float32 matrices, all rows of all of them different, and a small one."""
    chance = random.Random(seed)
    shapes = {f"layer.{i}.weight": ("F32", [size // 1024, 256]) for i in range(tensors)} | {"bias": ("F32", [16])}

    def matrix() -> bytes:
        row = struct.pack("<255f", *[chance.random() for _ in range(255)])
        return b"".join(struct.pack("<f", number) + row for number in range(size // 1024))
    safetensors_files.write(path, shapes, (matrix() for _ in range(tensors)))


def write_mxfp4(path: Path, modules: int, rows: int, columns: int) -> None:
    """Random codes of two to a byte, and exponents of 1."""
    chance = random.Random(2)
    shapes = {f"layer.{i}.{name}": ("U8", shape) for i in range(modules)
              for name, shape in (("weight_packed", [rows, columns // 2]), ("weight_scale", [rows, columns // 32]))}
    safetensors_files.write(path, shapes, (chance.randbytes(rows * columns // 2) + b"\x7f" * (rows * columns // 32)
                                           for _ in range(modules)))


def run(*arguments: object, code: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, f"exit {done.returncode} instead of {code}: {arguments}\n{done.stderr}"
    return done


def digest(path: Path) -> str:
    return json.loads(run("digest", path, "--json").stdout)["checkpoint"]


def left(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if ".shardctl-" in each.name]


def journal_bytes(folder: Path) -> int:
    total = 0
    for sibling in left(folder):
        try:
            total += sum(each.stat().st_size for each in sibling.iterdir() if ".journal." in each.name)
        except OSError:  # It was committed meanwhile.
            pass
    return total


def kill_in_the_middle(line: list[object], folder: Path, how: int = signal.SIGKILL) -> int:
    """Starts it and ends it as soon as its journal has grown; repeated if it finished before that."""
    for _ in range(20):
        before = journal_bytes(folder)
        process = subprocess.Popen([TOOL, *map(str, line)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True)
        while process.poll() is None and journal_bytes(folder) <= before:
            time.sleep(0.0005)
        if process.poll() is None:
            if how == signal.SIGKILL:
                os.killpg(process.pid, how)
            else:
                process.send_signal(how)
            code = process.wait()
            if code != 0:
                return code
        subprocess.run(["rm", "-rf", line[line.index("-o") + 1]], check=True)
    raise AssertionError("each run was done before it could be killed")


class Resume(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.kept = tempfile.TemporaryDirectory()
        cls.source = Path(cls.kept.name) / "model.safetensors"
        write_safetensors(cls.source, 8, 12 * MIB)
        cls.digest = digest(cls.source)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.kept.cleanup()

    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = Path(self.folder.name)

    def line(self, *options: object, verb: str = "convert", source: object = None, to: str = "dst.safetensors") -> list[object]:
        return [verb, source or self.source, "-o", self.out / to, "-j", "1", "-q", *options]

    def resumed(self, line: list[object]) -> dict:
        """Runs it with --resume; nothing may be left beside the output."""
        result = json.loads(run(*line, "--resume", "--json").stdout)
        self.assertEqual(left(self.out), [])
        return result

    def check_kept(self, result: dict, total: int, read_for_each: int = 1) -> None:
        """Kept and written bytes make up the whole; at least a batch is kept."""
        self.assertEqual(result["bytes_kept"] + result["bytes_written"], total)
        self.assertGreaterEqual(result["bytes_kept"], 8 * MIB)
        self.assertLess(result["bytes_read"], total * read_for_each)

    def total(self) -> int:
        return 8 * 12 * MIB + 64

    def test_every_format_goes_on(self) -> None:
        targets = {"safetensors": "dst.safetensors", "torch": "dst.pt", "dcp": "dcp", "dcp-hf": "hf", "torch-ranks": "ranks"}
        for form, to in targets.items():
            with self.subTest(form):
                line = self.line("--to", form, to=to)
                kill_in_the_middle(line, self.out)
                self.check_kept(self.resumed(line), self.total())
                self.assertEqual(digest(self.out / to), self.digest)

    def test_a_torch_source_is_still_held_against_its_checksums(self) -> None:
        torch = self.out / "source.pt"
        run("convert", self.source, "-o", torch, "-q")
        line = self.line(source=torch, to="dst.pt")
        kill_in_the_middle(line, self.out)
        self.check_kept(self.resumed(line), self.total())
        self.assertEqual(digest(self.out / "dst.pt"), self.digest)

    def test_damage_that_the_killed_run_read_is_found_by_the_next(self) -> None:
        """The checksum of a record is compared when all its bytes were read, by any run."""
        plain, torch = self.out / "one.safetensors", self.out / "one.pt"
        write_safetensors(plain, 1, 96 * MIB)
        run("convert", plain, "-o", torch, "-q")
        with torch.open("r+b") as file:
            file.seek(2 * MIB)
            byte = file.read(1)[0]
            file.seek(2 * MIB)
            file.write(bytes([byte ^ 1]))
        line = self.line(source=torch, to="dst.safetensors")
        kill_in_the_middle(line, self.out)
        self.assertIn("checksum", run(*line, "--resume", code=4).stderr)
        self.assertFalse((self.out / "dst.safetensors").exists())

    def test_a_repair_goes_on_and_knows_its_source(self) -> None:
        whole, damaged = self.out / "whole", self.out / "damaged"
        for folder in whole, damaged:
            run("split", self.source, "-o", folder, "--ranks", "2", "-q")
        (damaged / ".metadata").unlink()
        line = self.line("--like", whole, verb="repair", source=damaged, to="repaired")
        kill_in_the_middle(line, self.out)
        times = os.stat(damaged / "__0_0.distcp")
        os.utime(damaged / "__0_0.distcp")
        self.assertIn("__0_0.distcp", run(*line, "--resume", code=2).stderr)
        os.utime(damaged / "__0_0.distcp", ns=(times.st_atime_ns, times.st_mtime_ns))
        self.check_kept(self.resumed(line), self.total(), read_for_each=2)
        self.assertEqual(digest(self.out / "repaired"), self.digest)

    def test_a_cast_goes_on(self) -> None:
        line = self.line("--cast", "**=bfloat16")
        kill_in_the_middle(line, self.out)
        whole = self.out / "whole.safetensors"
        run(*self.line("--cast", "**=bfloat16", to="whole.safetensors"))
        self.check_kept(self.resumed(line), self.total() // 2, read_for_each=2)
        self.assertEqual(digest(self.out / "dst.safetensors"), digest(whole))

    def test_computed_weights_go_on(self) -> None:
        source = self.out / "quantized.safetensors"
        write_mxfp4(source, 4, 4096, 3072)
        line = self.line("--dequantize", source=source)
        kill_in_the_middle(line, self.out)
        whole = self.out / "whole.safetensors"
        run(*self.line("--dequantize", source=source, to="whole.safetensors"))
        self.check_kept(self.resumed(line), 4 * 4096 * 3072 * 2, read_for_each=2)
        self.assertEqual(digest(self.out / "dst.safetensors"), digest(whole))

    def test_other_threads_and_ranks_go_on(self) -> None:
        for number, options in enumerate((["-j", "4"], ["--local-ranks", "3"], ["--local-ranks", "2", "-j", "2"])):
            with self.subTest(options):
                line = self.line("--ranks", "4", verb="split", to=f"dst{number}")
                kill_in_the_middle(line, self.out)
                self.check_kept(self.resumed([*[each for each in line if each not in ("-j", "1")], *options]), self.total())
                self.assertEqual(digest(self.out / f"dst{number}"), self.digest)

    def test_killed_ranks_go_on_in_one_process(self) -> None:
        line = self.line("--ranks", "4", verb="split", to="dst")
        kill_in_the_middle([*line, "--local-ranks", "3"], self.out)
        self.check_kept(self.resumed(line), self.total())
        self.assertEqual(digest(self.out / "dst"), self.digest)

    def test_damage_to_what_was_written_is_copied_again(self) -> None:
        line = self.line(to="dst.safetensors")
        kill_in_the_middle(line, self.out)
        staged = left(self.out)[0] / "dst.safetensors"
        with staged.open("r+b") as file:
            file.seek(2 * MIB)
            file.write(b"\xff" * 4096)
        self.resumed(line)
        self.assertEqual(digest(self.out / "dst.safetensors"), self.digest)

    def test_a_journal_that_was_cut_or_damaged_counts_as_far_as_it_goes(self) -> None:
        for damage in "cut", "flip", "empty":
            with self.subTest(damage):
                line = self.line(to=f"{damage}.safetensors")
                kill_in_the_middle(line, self.out)
                journal = next(each for each in left(self.out)[0].iterdir() if ".journal." in each.name)
                content = bytearray(journal.read_bytes())
                if damage == "flip":
                    content[-3] ^= 1
                journal.write_bytes(content[:-5] if damage == "cut" else b"" if damage == "empty" else content)
                self.resumed(line)
                self.assertEqual(digest(self.out / f"{damage}.safetensors"), self.digest)

    def test_another_job_is_refused_and_the_rest_kept(self) -> None:
        source = self.out / "model.safetensors"
        write_safetensors(source, 4, 12 * MIB)
        line = self.line("--ranks", "2", verb="split", source=source, to="dst")
        kill_in_the_middle(line, self.out)

        def refused(options: list[object], *words: str) -> None:
            before = sorted(str(each) for each in left(self.out)[0].rglob("*"))
            text = run(*options, "--resume", code=2).stderr
            for word in words:
                self.assertIn(word, text)
            self.assertEqual(sorted(str(each) for each in left(self.out)[0].rglob("*")), before)

        refused(self.line("--ranks", "3", verb="split", source=source, to="dst"), "cannot resume", "3 files of")
        refused(self.line("--ranks", "2", "--dim", "1", verb="split", source=source, to="dst"), "cannot resume")
        refused(self.line("--ranks", "2", "--max-memory", "256KiB", verb="split", source=source, to="dst"), "had a higher memory limit")
        os.utime(source)
        refused(line, "the source has changed", "model.safetensors", "changed at")
        write_safetensors(source, 4, 12 * MIB, seed=2)
        refused(line, "the source has changed")
        run(*line)  # Without --resume it starts from scratch.
        self.assertEqual(left(self.out), [])
        self.assertEqual(digest(self.out / "dst"), digest(source))

    def test_an_average_goes_on_only_with_the_same_weights(self) -> None:
        other = self.out / "other.safetensors"
        write_safetensors(other, 8, 12 * MIB, seed=3)
        run("average", self.source, other, "--weights", "0.25,0.75", "-o", self.out / "whole.safetensors", "-q")
        line = ["average", self.source, other, "-o", self.out / "dst.safetensors", "-j", "1", "-q"]
        kill_in_the_middle([*line, "--weights", "0.25,0.75"], self.out)
        for different in (["--weights", "0.75,0.25"], ["--ema", "0.75"], []):
            self.assertIn("cannot resume", run(*line, *different, "--resume", code=2).stderr)
        swapped = [line[0], line[2], line[1], *line[3:], "--weights", "0.25,0.75", "--resume"]
        self.assertIn("cannot resume", run(*swapped, code=2).stderr)
        self.check_kept(self.resumed([*line, "--weights", "0.25,0.75"]), self.total(), read_for_each=2)
        self.assertEqual((self.out / "dst.safetensors").read_bytes(), (self.out / "whole.safetensors").read_bytes())

    def test_a_map_that_computes_goes_on_only_with_the_same_numbers(self) -> None:
        document = self.out / "map.json"
        document.write_text('{"schema": "shardctl.layout/1", "name": "m", "vars": {"s": 2}, '
                            '"rules": [{"match": ".*weight", "scale": "s"}, {"match": "bias"}]}')
        line = self.line("--to-map", document)
        kill_in_the_middle(line, self.out)
        document.write_text(document.read_text().replace('"s": 2', '"s": 3'))
        self.assertIn("cannot resume", run(*line, "--resume", code=2).stderr)
        document.write_text(document.read_text().replace('"s": 3', '"s": 2'))
        self.check_kept(self.resumed(line), self.total())
        run("convert", self.source, "-o", self.out / "whole.safetensors", "--to-map", document, "-q")
        self.assertEqual(digest(self.out / "dst.safetensors"), digest(self.out / "whole.safetensors"))

    def test_nothing_to_resume_begins_anew(self) -> None:
        result = self.resumed(self.line())
        self.assertEqual(result["bytes_kept"], 0)
        self.assertEqual(digest(self.out / "dst.safetensors"), self.digest)

    def test_without_resume_nothing_is_kept(self) -> None:
        line = self.line()
        kill_in_the_middle(line, self.out)
        self.assertEqual(json.loads(run(*line, "--json").stdout)["bytes_kept"], 0)
        self.assertEqual(left(self.out), [])

    def test_an_interrupted_run_with_resume_leaves_its_work(self) -> None:
        line = self.line("--resume")
        self.assertEqual(kill_in_the_middle(line, self.out, signal.SIGTERM), 143)
        self.assertEqual(len(left(self.out)), 1)
        self.check_kept(self.resumed(self.line()), self.total())
        self.assertEqual(digest(self.out / "dst.safetensors"), self.digest)

    def test_several_kills_and_an_old_destination(self) -> None:
        old = self.out / "dst.safetensors"
        run("convert", self.source, "-o", old, "--cast", "**=float16", "-q")
        before = digest(old)
        line = self.line("--force")
        kill_in_the_middle(line, self.out)
        for _ in range(3):
            process = subprocess.Popen([TOOL, *map(str, line), "--resume"], stderr=subprocess.DEVNULL)
            time.sleep(0.02)
            process.kill()
            if process.wait() == 0:
                break
            self.assertIn(digest(old), (before, self.digest))
        if digest(old) == before:
            self.resumed(line)
        self.assertEqual(digest(old), self.digest)


def stop_and_kill(process: subprocess.Popen) -> int:
    """Kills it. \returns the bytes that it wrote, the journal's too."""
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.01)
    counters = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
    process.kill()
    process.communicate()
    return int(counters["wchar"])


def loop(rounds: int, size: int, kills: int) -> None:
    """Prints the bytes that all runs of a job wrote, over those that one run writes."""
    seed = int(os.environ.get("SHARD_SEED", time.time_ns()))
    chance = random.Random(seed)
    print(f"SHARD_SEED={seed}")
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "model.safetensors", Path(folder) / "out"
        out.mkdir()
        write_safetensors(source, 32, size // 32 // 1024 * 1024)
        wanted = digest(source)
        line = [str(each) for each in (TOOL, "split", source, "-o", out / "dst", "--ranks", "4", "--json", "--resume")]
        start = time.perf_counter()
        total = json.loads(run("split", source, "-o", out / "dst", "--ranks", "4", "--json").stdout)["bytes_written"]
        whole = time.perf_counter() - start
        for _ in range(rounds):
            subprocess.run(["rm", "-rf", out / "dst"], check=True)
            done, written, last, has_ended = 0, [], 0, False
            while not (out / "dst").exists():  # A run may be killed after its commit.
                process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                try:
                    text, errors = process.communicate(timeout=whole * (0.1 + chance.random() * 0.5) if done < kills else None)
                except subprocess.TimeoutExpired:
                    written.append(stop_and_kill(process))
                    done += 1
                    continue
                assert process.returncode == 0, f"exit {process.returncode}: {errors.decode()}"
                last, has_ended = json.loads(text)["bytes_written"], True
            assert digest(out / "dst") == wanted
            assert not has_ended or left(out) == []
            subprocess.run(["rm", "-rf", *left(out)], check=True)
            all_runs = (sum(written) + last) / total
            worst = max(worst, all_runs)
            print(f"{done} kills: all runs together wrote {all_runs:.3f} of what one writes; the killed ones {[round(each / total, 3) for each in written]}, "
                  f"the last {last / total:.3f}", flush=True)
    print(f"at most {worst:.3f}")


def main() -> None:
    global TOOL
    options = argparse.ArgumentParser()
    options.add_argument("tool")
    options.add_argument("--rounds", type=int, default=0)
    options.add_argument("--bytes", type=int, default=2 << 30)
    options.add_argument("--kills", type=int, default=6)
    chosen, rest = options.parse_known_args()
    TOOL = os.path.abspath(chosen.tool)
    if chosen.rounds:
        loop(chosen.rounds, chosen.bytes, chosen.kills)
    else:
        unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
