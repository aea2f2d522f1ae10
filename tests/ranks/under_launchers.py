"""The conformance suite of groups in processes: under_launchers.py GROUP_PROGRAM mpirun|torchrun.

Every check must have passed on rank 0. For those that break the group one rank's report is enough, because the launcher
may end the others as soon as that one ends, but none may have failed.
"""
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launched"))
import harness as h  # noqa: E402

CHECKS = 10
ENDINGS = ("MissesASilentRank", "AbortEndsTheOthers")  # Each breaks its group.
PROGRAM, LAUNCHER = sys.argv[1:3]


def text_of(result: h.Result) -> str:
    return result.out + result.err


def expect_all(checks: h.Checks, backend: str, ranks: int, what: str, result: h.Result) -> None:
    passed = len(re.findall(rf"^{backend} {ranks} ranks: ", text_of(result), re.M))
    checks.that(passed == CHECKS, f"{what}, {backend}, {ranks} ranks: {passed} of {CHECKS} checks passed", result)


def ended_by_mpirun(ranks: int, text: str) -> bool:
    """MPI's ranks see that one failed when it exits. mpirun sees it too and ends the job, often before another can print."""
    return f"mpirun has exited due to process rank {ranks - 1} " in text and "after a rank gave up" not in text


def expect_ending(checks: h.Checks, launch: h.Launch, backend: str, ranks: int, check: str) -> None:
    result = h.Job(launch, [PROGRAM, backend, check]).wait()
    text = text_of(result)
    is_wrong = re.search(r"^(the|after a) .*(barrier passed|wrong code|too long)", text, re.M)
    is_told = re.search(rf"^{backend} {ranks} ranks: {check}$", text, re.M) or (
        (backend, check) == ("mpi", "AbortEndsTheOthers") and ended_by_mpirun(ranks, text))
    checks.that(not is_wrong and bool(is_told), f"{launch.name}, {backend}: {check}", result)


def under_mpirun(checks: h.Checks) -> None:
    def launch(ranks: int) -> h.Launch:
        return h.Launch(f"mpirun -n {ranks}", ["mpirun", "--oversubscribe", "-n", str(ranks)], [])
    for backend in [each for each in ("mpi", "gloo") if each in h.backends()]:
        for ranks in (1, 2, 4):
            expect_all(checks, backend, ranks, "mpirun", h.Job(launch(ranks), [PROGRAM, backend]).wait())
        for check in ENDINGS:
            expect_ending(checks, launch(4), backend, 4, check)


def under_torchrun(checks: h.Checks) -> None:
    for ranks in (1, 2, 4):
        expect_all(checks, "gloo", ranks, "torchrun", h.Job(h.torchrun(ranks), [PROGRAM, "gloo"]).wait())
    for check in ENDINGS:
        expect_ending(checks, h.torchrun(2), "gloo", 2, check)
    # The other kinds of rendezvous: a separate store of rank 0, the c10d rendezvous, variables set by hand.
    two = ["--no-python", "--nproc-per-node", "2"]
    c10d = h.Launch("torchrun, c10d", [*h.TORCHRUN, *two, "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"], [],
                    {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    static = h.Launch("torchrun, a port", [*h.TORCHRUN, *two, "--master-port", "29641"], [])
    for launch in (c10d, static):
        expect_all(checks, "gloo", 2, launch.name, h.Job(launch, [PROGRAM, "gloo"]).wait())
    by_hand = [h.Job(h.alone(), [PROGRAM, "gloo"],
                     {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                      "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29642"}) for rank in (1, 0)]
    by_hand[0].wait()
    expect_all(checks, "gloo", 2, "by hand", by_hand[1].wait())


def main() -> None:
    h.require_launcher(LAUNCHER)
    checks = h.Checks()
    (under_mpirun if LAUNCHER == "mpirun" else under_torchrun)(checks)
    checks.end()


if __name__ == "__main__":
    main()
