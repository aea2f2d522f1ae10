"""One rank fails in each phase: everything ends in time, with the cause's code, an unchanged destination, and no
leftovers.

SHARDCTL_TEST_HOLD (README.md) holds a rank at a step until the test has acted on it.
"""
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import harness as h

TIMEOUT = 5
GRACE = 20
MPIRUN_KILLS = 1.9  # Seconds after one rank has died, of those that still live.
PHASES = ("rendezvous", "catalog", "plan", "copy", "finish", "commit")


def processes(mark: str) -> dict[int, str]:
    """Living processes of a job, by their environment: process id and program."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if state not in "ZX":
                    found[int(entry.name)] = os.readlink(entry / "exe")
        except OSError:
            continue
    return found


class Scene:
    """One job whose rank `held` waits at `phase`."""

    def __init__(self, checks: h.Checks, work: Path, launch: h.Launch, phase: str, held: int, trouble: str):
        self.checks, self.launch, self.phase, self.held, self.trouble = checks, launch, phase, held, trouble
        self.name = f"{trouble} at {phase}, rank {held}, {launch.name}"
        self.folder = work / "scene"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        shutil.copytree(work / "source", self.folder / "source")
        shutil.copytree(work / "old", self.folder / "out")
        self.old = work / "old"
        self.door = self.folder / "door"
        self.mark = f"SHARD_TEST_JOB={uuid.uuid4()}"

    def start(self, before: list[str] | None = None, hold: bool = True) -> None:
        env = dict([self.mark.split("=")])
        if hold:
            env["SHARDCTL_TEST_HOLD"] = f"{self.phase}:{self.held}:{self.door}"
        arguments = ["reshard", "source", "-o", "out", "--ranks", "3", "--force", "--timeout", str(TIMEOUT)]
        self.job = h.Job(self.launch, [*(before or []), h.SHARDCTL, *arguments], env, self.folder)

    def held_process(self) -> int:
        for _ in range(3000):
            if self.door.exists():
                return int(self.door.read_text())
            if self.job.process.poll() is not None:
                break
            time.sleep(0.01)
        raise RuntimeError(f"{self.name}: the rank never came to the step: {self.job.wait(1).err}")

    def act(self) -> None:
        pid = self.held_process()
        self.begin = time.monotonic()
        self.stopped = 0
        if self.trouble == "killed":
            os.kill(pid, signal.SIGKILL)
            return
        if self.trouble == "stopped":
            os.kill(pid, signal.SIGSTOP)
            self.stopped = pid
            return
        if self.trouble == "full disk":
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (512, 512))
        if self.trouble == "damaged file":
            time.sleep(0.5)  # The others have read their share.
            for path in (self.folder / "source").iterdir():
                os.truncate(path, 4096)
        if self.trouble == "silent":
            time.sleep(TIMEOUT + 1)
        if self.trouble == "launcher told":
            self.job.process.terminate()
            while len(self.ranks()) > 1 and time.monotonic() < self.begin + GRACE:
                time.sleep(0.02)  # The held rank does not notice it.
        self.door.unlink()

    def ranks(self) -> set[int]:
        return {pid for pid, exe in processes(self.mark).items() if Path(exe).name == "shardctl"} - {self.stopped}

    def end(self) -> h.Result:
        """Waits for the ranks. A stopped one is ended by mpirun; torchrun would wait 30 s with that."""
        limit = self.begin + TIMEOUT + GRACE + (TIMEOUT + 1 if self.trouble == "silent" else 0)
        while self.ranks() and time.monotonic() < limit:
            time.sleep(0.02)
        self.seconds = time.monotonic() - self.begin
        self.checks.that(not self.ranks(), f"{self.name}: all ranks end within {TIMEOUT} + {GRACE} s")
        if self.stopped and "torchrun" in self.launch.name:
            try:
                os.kill(self.stopped, signal.SIGKILL)
            except ProcessLookupError:
                pass
        result = self.job.wait(40)
        for _ in range(100):
            left = processes(self.mark)
            if not left:
                break
            time.sleep(0.02)
        self.checks.that(not left, f"{self.name}: no process is left, but {left}", result)
        return result

    def left(self) -> list[str]:
        left = h.left_overs(self.folder)
        if self.held == 0 and self.trouble in ("killed", "stopped"):
            left = [path for path in left if ".shardctl-" not in path and "vader_segment" not in path]
        return left

    def was_cut_short(self) -> bool:
        """Whether mpirun killed the others while they cleaned up, as it does if the machine stalls for long."""
        is_mpirun = "mpirun" in self.launch.name
        return is_mpirun and self.trouble == "killed" and self.seconds > MPIRUN_KILLS and self.left() != []

    def judge(self, result: h.Result, code: int | None, words: tuple[str, ...]) -> None:
        is_torchrun = "torchrun" in self.launch.name
        wanted = 1 if is_torchrun else code
        if code is None:
            self.checks.that(result.code != 0, f"{self.name}: fails", result)
        else:
            self.checks.that(result.code == wanted, f"{self.name}: exit {wanted}, not {result.code}", result)
            if is_torchrun and self.trouble != "launcher told":
                self.checks.that(f"exitcode  : {code}" in result.err, f"{self.name}: torchrun's table says {code}", result)
        for word in words:
            self.checks.that(word in result.err, f"{self.name}: says '{word}'", result)
        told = result.err.count("shardctl: error:") - result.err.count("traceback : shardctl: error:")
        if code is not None:
            self.checks.that(told == 1, f"{self.name}: told once, not {told} times", result)
        self.checks.that(h.same_tree(self.old, self.folder / "out") == "", f"{self.name}: the destination is as it was", result)
        left = self.left()
        self.checks.that(left == [], f"{self.name}: nothing is left, but {left}", result)
        print(f"  {self.name}: exit {result.code} after {self.seconds:.1f} s", flush=True)


def run_scene(checks: h.Checks, work: Path, launch: h.Launch, phase: str, trouble: str, held: int) -> tuple[Scene, h.Result]:
    scene = Scene(checks, work, launch, phase, held, trouble)
    scene.start()
    scene.act()
    return scene, scene.end()


def held_case(checks: h.Checks, work: Path, launch: h.Launch, phase: str, trouble: str, held: int = 1) -> None:
    scene, result = run_scene(checks, work, launch, phase, trouble, held)
    if scene.was_cut_short():
        print(f"  {scene.name}: mpirun killed all after {scene.seconds:.1f} s; once more", flush=True)
        for path in map(Path, scene.left()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        scene, result = run_scene(checks, work, launch, phase, trouble, held)
    code, words = {"killed": (None, ()), "stopped": (7, ()), "silent": (7, ()),
                   "launcher told": (1, ("rank 0: interrupted",)), "full disk": (6, (f"rank {held}: ",)), "damaged file": (4, (f"rank {held}: ", "source"))}[trouble]
    scene.judge(result, code, words)


def other_case(checks: h.Checks, work: Path, launch: h.Launch, trouble: str) -> None:
    """Rank 1 is started with different options, or is a different version of the program."""
    scene = Scene(checks, work, launch, "start", 1, trouble)
    other = work / "shardctl"
    if not other.exists():
        version = subprocess.run([h.SHARDCTL, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
        patched = version[:2] + ("8" if version[2] != "8" else "7") + version[3:]  # Compilers put four characters in a word.
        other.write_bytes(Path(h.SHARDCTL).read_bytes().replace(version[:4].encode(), patched[:4].encode()))
        other.chmod(0o755)
        assert subprocess.run([other, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1] != version
    scene.start(h.shell(f'if [ {h.RANK_HERE} = 1 ]; then ' +
                        {"other options": 'exec "$@" --max-memory 8MiB', "other version": f'shift; exec {other} "$@"'}[trouble] +
                        '; fi; exec'), hold=False)
    scene.begin, scene.stopped = time.monotonic(), 0
    result = scene.end()
    scene.judge(result, 2 if trouble == "other options" else 7, ("rank 1",))


def all_cases() -> list[tuple]:
    """The cases of a launcher: (phase, trouble, rank held)."""
    cases = [(phase, trouble, 1) for phase in PHASES for trouble in ("killed", "stopped")]
    cases += [(phase, "killed", 0) for phase in ("rendezvous", "catalog", "copy", "commit")] + [("copy", "stopped", 0)]
    cases += [("copy", "launcher told", 1)]
    cases += [("copy", "full disk", 1), ("finish", "full disk", 0), ("catalog", "damaged file", 1), ("copy", "damaged file", 1)]
    return cases


def chosen_cases() -> list[tuple[h.Launch, tuple]]:
    mpi, gloo, torchrun = h.mpirun(2, "mpi"), h.mpirun(2, "gloo"), h.torchrun(2)
    if h.FULL:
        return [(launch, case) for launch in (mpi, gloo, torchrun, h.mpirun(4, "mpi"), h.mpirun(4, "gloo"))
                for case in all_cases()]
    left_out = [("plan", "killed", 1), ("finish", "killed", 1), ("rendezvous", "killed", 0), ("catalog", "killed", 0)]
    quick = [(mpi, case) for case in all_cases() if case[1] != "stopped" and case not in left_out]
    quick += [(mpi, ("rendezvous", "stopped", 1)), (gloo, ("rendezvous", "stopped", 1)), (mpi, ("copy", "stopped", 1)),
              (gloo, ("commit", "stopped", 1)), (torchrun, ("copy", "stopped", 1)), (torchrun, ("commit", "killed", 1)),
              (torchrun, ("copy", "damaged file", 1)), (gloo, ("copy", "killed", 1)), (gloo, ("copy", "full disk", 1)),
              (torchrun, ("copy", "launcher told", 1)), (h.mpirun(4, "mpi"), ("finish", "killed", 1)),
              (h.mpirun(4, "gloo"), ("copy", "killed", 2))]
    return quick


def thread_cases(checks: h.Checks, work: Path) -> None:
    launch = h.threads(4)
    # From then on a rank's work may take long, because it reports that it is alive.
    held_case(checks, work, launch, "rendezvous", "silent")
    held_case(checks, work, launch, "catalog", "damaged file")
    held_case(checks, work, launch, "copy", "damaged file")


def main() -> None:
    h.require_launchers()
    if os.environ.get("SHARD_TEST_HOOKS") != "1":
        h.skip("this shardctl was built without SHARD_TEST_HOOKS")
    checks = h.Checks()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        h.make_model(work / "model.safetensors", 16)  # So that each of 4 ranks has something to copy.
        (work / "old").mkdir()
        (work / "old" / "what was there").write_text("before\n")
        subprocess.run([h.SHARDCTL, "split", "model.safetensors", "-o", "source", "--to", "torch-ranks", "--as", "dtensor",
                        "--ranks", "4", "-q"], cwd=work, env=h.BASE, check=True)
        thread_cases(checks, work)
        h.Job(h.mpirun(2, "mpi"), [h.SHARDCTL, "--version"]).wait()  # The first start reads Open MPI's plug-ins from the disk.
        for launch in [h.mpirun(2, "mpi")] + ([h.mpirun(2, "gloo"), h.torchrun(2)] if h.FULL else []):
            for trouble in ("other options", "other version"):
                other_case(checks, work, launch, trouble)
        for launch, (phase, trouble, held) in chosen_cases():
            held_case(checks, work, launch, phase, trouble, held)
    checks.end()


if __name__ == "__main__":
    main()
