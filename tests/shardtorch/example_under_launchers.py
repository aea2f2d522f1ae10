"""The example shards a module over 4 processes, saves it, and loads it on 2 and on 1; the guides' programs run on 3 and 4:
example_under_launchers.py EXAMPLE GUIDE DTENSOR_GUIDE mpirun|torchrun.
"""
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launched"))
import harness as h  # noqa: E402

EXAMPLE, GUIDE, DTENSOR_GUIDE, LAUNCHER = sys.argv[1:5]


def run(ranks: int, *words) -> h.Result:
    mpirun = h.Launch(f"mpirun -n {ranks}", ["mpirun", "--oversubscribe", "-n", str(ranks)], [])
    return h.Job(mpirun if LAUNCHER == "mpirun" else h.torchrun(ranks), list(map(str, words))).wait()


def check_example(checks: h.Checks, folder: Path) -> None:
    saved = folder / "checkpoint"
    for ranks, verb, says in ((4, "save", "saved by 4 ranks"), (2, "load", "loaded by 2 ranks, the weights are the same"),
                              (4, "load", "loaded by 4 ranks, the weights are the same")):
        result = run(ranks, EXAMPLE, verb, saved)
        checks.that(result.code == 0 and (result.out + result.err).count(says) == 1, f"{LAUNCHER}, {verb} on {ranks} ranks", result)
    alone = subprocess.run([EXAMPLE, "load", saved], env=h.BASE, capture_output=True, text=True)
    checks.that("loaded by 1 ranks, the weights are the same" in alone.stdout, "one process without a launcher")
    absent = run(2, EXAMPLE, "load", folder / "nothing")
    checks.that(absent.code not in (0, 124), "a job whose checkpoint is missing fails, and ends", absent)


def main() -> None:
    h.require_launcher(LAUNCHER)
    checks = h.Checks()
    with tempfile.TemporaryDirectory() as folder:
        check_example(checks, Path(folder))
        for ranks, guide in ((3, GUIDE), (4, DTENSOR_GUIDE)):
            result = run(ranks, guide, Path(folder) / Path(guide).name)
            checks.that(result.code == 0, f"{LAUNCHER}, {Path(guide).name} on {ranks} ranks", result)
    checks.end()


if __name__ == "__main__":
    main()
