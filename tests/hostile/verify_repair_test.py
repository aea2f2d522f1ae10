"""verify and repair (SHARDCTL) on files that claim much and on files of zip signatures: each run must end soon, small,
with the right exit code. repair plans no more than is in proportion, and inspect accepts its output.

verify_repair_test.py [PART OF A NAME]. Prints the worst time and memory. Only Python's standard library.
"""
import json
import multiprocessing
import shutil
import sys
import tempfile
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

import claims
from bounded import SHARDCTL, Ended, cost_problems, run
from case import Case

FLOOR = 1 << 30  # Bytes that tensors may always claim, and times the bytes of the files that they may.
TIMES = 1032


class Run:
    """One case in a folder of its own."""

    def __init__(self, runner: Executor, case: Case, folder: Path):
        self.runner, self.case, self.folder = runner, case, folder
        self.source = case.make(folder)
        self.worst = Ended(0)
        self.problems: list[str] = []

    def shardctl(self, *words: str) -> int | None:
        ended = self.runner.submit(run, [SHARDCTL, *words], self.folder).result()
        self.worst = Ended(0, max(self.worst.seconds, ended.seconds), max(self.worst.kib, ended.kib))
        if ended.code is None:
            self.problems.append(f"{words[0]} does not end")
        self.problems += [f"{words[0]} {problem}" for problem in cost_problems(ended)]
        return ended.code

    def text(self, name: str) -> str:
        return (self.folder / name).read_text(errors="replace")

    def expect(self, verb: str, code: int | None) -> None:
        if verb in self.case.codes and code not in self.case.codes[verb]:
            self.problems.append(f"{verb}: exit {code}, not {sorted(self.case.codes[verb])}: {self.text('stderr')[:300]}")

    def verify(self) -> None:
        code = self.shardctl("verify", str(self.source), "--json")
        self.expect("verify", code)
        document = self.text("stdout")
        findings = json.loads(document)["findings"] if code in (0, 1) else []
        if code == 1 and not any(each["severity"] == "error" for each in findings):
            self.problems.append("verify: exit 1 without an error")

    def size(self) -> int:
        source = Path(self.source)
        return sum(each.stat().st_size for each in source.rglob("*")) if source.is_dir() else source.stat().st_size

    def plan(self) -> None:
        if self.shardctl("repair", "-n", str(self.source), "-o", "dst", "--json") != 0:
            return
        planned = sum(each["bytes"] for each in json.loads(self.text("stdout"))["files"])
        if planned > max(FLOOR, TIMES * self.size()):
            self.problems.append(f"repair plans {planned} bytes for {self.size()}")

    def repair(self) -> None:
        code = self.shardctl("repair", str(self.source), "-o", "dst")
        self.expect("repair", code)
        if code != 0:
            if (self.folder / "dst").exists():
                self.problems.append("repair leaves an output")
        elif self.shardctl("inspect", "dst") != 0:
            self.problems.append(f"inspect does not accept the output of repair: {self.text('stderr')[:300]}")


def try_case(runner: Executor, case: Case) -> Run | None:
    folder = Path(tempfile.mkdtemp(prefix="claims-"))
    try:
        run = Run(runner, case, folder)
        run.expect("inspect", run.shardctl("inspect", str(run.source)))
        if "plug-in" in run.text("stderr"):
            print(f"SKIP {case.name}: this build has no plug-in for it")
            return None
        run.verify()
        run.plan()
        run.repair()
        return run
    finally:
        shutil.rmtree(folder)


def main() -> int:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    seconds, kib, problems, runs = (0.0, ""), (0, ""), 0, 0
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as runner:
        for case in claims.cases():
            run = try_case(runner, case) if wanted in case.name else None
            if run is None:
                continue
            runs += 1
            problems += len(run.problems)
            for problem in run.problems:
                print(f"FAIL {case.name}: {problem}", flush=True)
            seconds, kib = max(seconds, (run.worst.seconds, case.name)), max(kib, (run.worst.kib, case.name))
    print(f"{runs} cases, {problems} problems")
    print("worst time: {:.2f} s ({})".format(*seconds))
    print("worst memory: {:.0f} MiB ({})".format(kib[0] / 1024, kib[1]))
    return 1 if problems or runs == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
