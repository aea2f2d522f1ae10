"""Runs the real shardctl under the real launchers. Run it with a Python that has torch, for torchrun. Environment: SHARDCTL is
the program, SHARD_DATA the folder tests/data. Each script takes --full for all cases instead of those that suit CI.
"""
import array
import contextlib
import math
import os
import random
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import safetensors_files  # noqa: E402

try:
    import torch.distributed.argparse_util, torch.distributed.launcher.api  # All that torchrun imports; see ForkedTorchrun.
except ImportError:
    torch = None

SHARDCTL = os.environ["SHARDCTL"]
DATA = Path(os.environ["SHARD_DATA"])
TORCHRUN_MODULE = "torch.distributed.run"
TORCHRUN = [sys.executable, "-m", TORCHRUN_MODULE]
FULL = "--full" in sys.argv
LAUNCHER_WORDS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC", "OMPI_", "PMI", "MV2_", "SLURM_", "SHARDCTL_")
BASE = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_WORDS)}
BASE |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "LC_ALL": "C"}
RANK_HERE = "${OMPI_COMM_WORLD_RANK:-$RANK}"  # In shell words that a launcher starts.

# The script's own folder for temporary files: what other tests leave for a while is not in it.
temporary = tempfile.TemporaryDirectory(prefix="launched-")
BASE["TMPDIR"] = temporary.name

started = time.monotonic()
segments_before = {str(path) for path in Path("/dev/shm").glob("vader_segment*")}


def skip(what: str) -> None:
    print(f"SKIPPED: {what}")
    sys.exit(77)


def has_mpirun() -> bool:
    return shutil.which("mpirun") is not None


def backends() -> list[str]:
    lines = subprocess.run([SHARDCTL, "env"], env=BASE, capture_output=True, text=True, check=True).stdout.splitlines()
    return next(line.split(None, 1)[1] for line in lines if line.startswith("plug-ins")).split(", ")


def require_launcher(name: str) -> None:
    if name == "mpirun" and not has_mpirun():
        skip("no mpirun here")
    if name == "torchrun" and torch is None:
        skip(f"no torch in {sys.executable}")


def require_launchers() -> None:
    require_launcher("mpirun")
    require_launcher("torchrun")
    missing = {"mpi", "gloo"} - set(backends())
    if missing:
        skip(f"built without the backends {', '.join(sorted(missing))}")


class Launch:
    """How a job is started: words before the program, and variables."""

    def __init__(self, name: str, words: list[str], options: list[str], env: dict[str, str] | None = None):
        self.name, self.words, self.options, self.env = name, words, options, env or {}

    def line(self, program: list[str]) -> list[str]:
        return [*self.words, *program, *self.options]


def alone() -> Launch:
    return Launch("one process", [], [])


def threads(ranks: int) -> Launch:
    return Launch(f"{ranks} threads", [], ["--local-ranks", str(ranks)])


def mpirun(ranks: int, backend: str = "mpi", *words: str) -> Launch:
    return Launch(f"mpirun -n {ranks}, {backend}", ["mpirun", "--oversubscribe", *words, "-n", str(ranks)], ["--backend", backend])


def torchrun(ranks: int, *words: str) -> Launch:
    return Launch(f"torchrun {ranks}", [*TORCHRUN, "--standalone", "--no-python", "--nproc-per-node", str(ranks), *words], [])


class Result:
    def __init__(self, code: int, out: bytes, err: bytes, seconds: float):
        self.code, self.out, self.err, self.seconds = code, out.decode(errors="replace"), err.decode(errors="replace"), seconds


class ForkedTorchrun:
    """A torchrun that is forked from this process, which has imported torch: a new one needs 4 s of processor time for that.
    Has those parts of subprocess.Popen that Job uses."""

    def __init__(self, options: list[str], env: dict[str, str], cwd: Path | None, files: list):
        ready, tell = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self.become_torchrun(options, env, cwd, files, tell)
        os.close(tell)
        os.read(ready, 1)  # It has a process group of its own now.
        os.close(ready)

    @staticmethod
    def become_torchrun(options: list[str], env: dict[str, str], cwd: Path | None, files: list, tell: int) -> None:
        code = 1
        try:
            os.setsid()
            os.close(tell)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for descriptor, file in enumerate(files, 1):
                os.dup2(file.fileno(), descriptor)
            os.chdir(cwd or ".")
            os.environ.clear()
            os.environ.update(env)
            sys.argv[1:] = options
            runpy.run_module(TORCHRUN_MODULE, run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as request:
            code = request.code if isinstance(request.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, seconds: float = math.inf) -> int:
        end = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("torchrun", seconds)
            time.sleep(0.02)
        return self.returncode

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)


class Job:
    """A launched job in a process group of its own, so that none of its processes survives the test."""

    def __init__(self, launch: Launch, program: list[str], env: dict[str, str] | None = None, cwd: Path | None = None):
        self.files = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]
        self.begin = time.monotonic()
        words, variables = launch.line(program), {**BASE, **launch.env, **(env or {})}
        if words[:len(TORCHRUN)] == TORCHRUN:
            self.process = ForkedTorchrun(words[len(TORCHRUN):], variables, cwd, self.files)
        else:
            self.process = subprocess.Popen(words, env=variables, cwd=cwd, stdin=subprocess.DEVNULL, stdout=self.files[0],
                                            stderr=self.files[1], start_new_session=True)

    def says(self, words: str, seconds: float) -> bool:
        """Waits until the running job has written these words to its standard error."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if words.encode() in os.pread(self.files[1].fileno(), 1 << 20, 0):
                return True
            time.sleep(0.05)
        return False

    def wait(self, seconds: float = 300) -> Result:
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = 124
        self.end()
        taken = time.monotonic() - self.begin
        for file in self.files:
            file.seek(0)
        return Result(code, self.files[0].read(), self.files[1].read(), taken)

    def end(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def run(launch: Launch, arguments: list, env: dict[str, str] | None = None, cwd: Path | None = None) -> Result:
    return Job(launch, [SHARDCTL, *map(str, arguments)], env, cwd).wait()


def shell(text: str) -> list[str]:
    return ["bash", "-c", text + ' "$@"', "bash"]


def quoted(words: list) -> str:
    return shlex.join(map(str, words))


class Checks:
    """Counts; a failure is printed at once, and ends in exit code 1."""

    def __init__(self) -> None:
        self.good = self.bad = 0

    def that(self, claim: bool, what: str, result: Result | None = None) -> bool:
        if claim:
            self.good += 1
        else:
            self.bad += 1
            print(f"FAILED: {what}")
            if result is not None:
                print(f"  exit {result.code} after {result.seconds:.1f} s\n  --- stdout\n{result.out[-2000:]}  --- stderr\n{result.err[-4000:]}")
            sys.stdout.flush()
        return claim

    def end(self) -> None:
        print(f"{self.good} checks passed, {self.bad} failed, {time.monotonic() - started:.0f} s")
        sys.exit(1 if self.bad else 0)


def make_model(path: Path, megabytes: int) -> None:
    """A safetensors file of float32 tensors of many sizes, without NaN."""
    numbers = random.Random(1)
    rows = megabytes * 1024
    shapes = {"embed.weight": [rows // 2, 256], "layers.0.weight": [rows // 4, 256], "layers.0.bias": [257],
              "layers.1.weight": [rows // 8, 256], "norm.weight": [3], "scalar": [], "empty": [0, 4]}
    elements = (array.array("f", (numbers.random() for _ in range(math.prod(shape)))).tobytes() for shape in shapes.values())
    safetensors_files.write(path, {name: ("F32", shape) for name, shape in shapes.items()}, elements)


def same_tree(a: Path, b: Path) -> str:
    """The differences between two files or folders, or nothing."""
    return subprocess.run(["diff", "-r", str(a), str(b)], capture_output=True, text=True, check=False).stdout


def left_overs(folder: Path) -> list[str]:
    """Leftovers that an ended job must not have: temporary outputs, rendezvous folders, shared memory of MPI's and
    ours."""
    left = [str(path) for path in folder.glob(".*.shardctl-*")]
    left += [str(path) for path in Path(temporary.name).glob(f"shardctl-{os.getuid()}-*")]
    left += [str(path) for path in Path("/dev/shm").glob("*shardctl*")]
    segments = {str(path) for path in Path("/dev/shm").glob("vader_segment*")} - segments_before
    return left + [path for path in segments if not is_mapped(path)]


def check_nothing_left(checks: Checks, folder: Path, what: str = "nothing is left", result: Result | None = None) -> None:
    """Jobs of tests that run at the same time leave something too, but not for long."""
    for _ in range(100):
        left = left_overs(folder)
        if not left:
            break
        time.sleep(0.1)
    checks.that(left == [], f"{what}, but {left}", result)


@contextlib.contextmanager
def checked() -> Iterator[tuple[Checks, Path]]:
    """Checks in a folder, in which nothing may be left. Ends the process."""
    require_launchers()
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        yield checks, Path(folder)
        check_nothing_left(checks, Path(folder))
    checks.end()


def is_mapped(path: str) -> bool:
    """Whether a living process, perhaps of a different job, has it in its memory."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if path in maps.read_text():
                return True
        except OSError:
            continue
    return False
