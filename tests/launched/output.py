"""The ranks that print: rank 0 the data, the rank that found it the failure; exit codes as the launchers pass them
on."""
import json
import re
from pathlib import Path

import harness as h


def launches() -> list[h.Launch]:
    return [h.threads(4), h.mpirun(4, "mpi"), h.mpirun(4, "gloo"), h.torchrun(4)]


def check_shared_failure(checks: h.Checks, work: Path, launch: h.Launch) -> None:
    """A file that is damaged for all: one of them reports it."""
    result = h.run(launch, ["gather", "damaged.safetensors", "-o", "out.pt", "--json"], cwd=work)
    is_torchrun = "torchrun" in launch.name
    checks.that(result.code == (1 if is_torchrun else 4), f"damage, {launch.name}: exit {1 if is_torchrun else 4}", result)
    checks.that(result.err.count("shardctl: error:") == (2 if is_torchrun else 1),
                f"damage, {launch.name}: told once on stderr (and by torchrun in its table)", result)
    told = re.search(r"error: rank (\d): damaged.safetensors", result.err)
    checks.that(told is not None, f"damage, {launch.name}: names rank and file", result)
    documents = [line for line in result.out.splitlines() if "shardctl.error/1" in line]
    if checks.that(len(documents) == 1 and told, f"damage, {launch.name}: one shardctl.error/1", result):
        error = json.loads(result.out)
        checks.that((error["code"], error["rank"]) == (4, int(told[1])), f"damage, {launch.name}: its code and rank", result)
    checks.that(not (work / "out.pt").exists(), f"damage, {launch.name}: nothing is written", result)


def check_all_end_alike(checks: h.Checks, work: Path, launch: h.Launch) -> None:
    """Each rank leaves its exit code in a file; none may be shot before it has."""
    codes = work / "codes"
    codes.mkdir(exist_ok=True)
    rank = h.RANK_HERE
    # The launcher ends the others when one ends with a failure: so all end with 0 here, and the codes are in files.
    wrapper = h.shell(f'f() {{ "$@"; echo $? >{codes}/{rank}; }}; f')
    job = h.Job(launch, [*wrapper, h.SHARDCTL, "gather", "absent.safetensors", "-o", "out.pt"], cwd=work)
    result = job.wait()
    found = {path.name: path.read_text().strip() for path in codes.iterdir()}
    checks.that(found == {str(i): "3" for i in range(4)}, f"codes, {launch.name}: 3 on all ranks, not {found}", result)
    checks.that(result.err.count("shardctl: error:") == 1, f"codes, {launch.name}: told once", result)
    for path in codes.iterdir():
        path.unlink()


def check_usage(checks: h.Checks, work: Path, launch: h.Launch) -> None:
    """Before there is a group."""
    result = h.run(launch, ["gather", "--no-such-option"], cwd=work)
    is_torchrun = "torchrun" in launch.name
    checks.that(result.code == (1 if is_torchrun else 2), f"usage, {launch.name}: exit 2", result)
    checks.that(result.err.count("shardctl: error:") == (2 if is_torchrun else 1), f"usage, {launch.name}: told once", result)


def check_error_file(checks: h.Checks, work: Path) -> None:
    result = h.run(h.torchrun(2), ["gather", "damaged.safetensors", "-o", "out.pt"], cwd=work)
    shown = result.err[result.err.find("Root Cause"):]
    checks.that("traceback : shardctl: error: " in shown and "exitcode  : 4" in shown,
                "torchrun shows our message as the root cause", result)


def check_logs(checks: h.Checks, work: Path) -> None:
    result = h.run(h.mpirun(2), ["gather", "model.safetensors", "-o", "logged.pt", "-vv"], cwd=work)
    for rank in (0, 1):
        checks.that(f"rank {rank} of 2 on " in result.err, f"logs carry rank {rank} and the host", result)
        figures = rf"rank {rank} of 2 on \S+: gather [0-9.]+ \S+ in [0-9.]+ s, [0-9.]+ \S+/s"
        checks.that(re.search(figures, result.err) is not None, f"logs tell what rank {rank} did", result)
    checks.that("step copy" in result.err, "logs tell the steps", result)


def check_progress(checks: h.Checks, work: Path, launch: h.Launch) -> None:
    """One rank draws, the sum of all."""
    result = h.run(launch, ["gather", "model.safetensors", "-o", "drawn.pt", "--progress", "json"], cwd=work)
    lines = [json.loads(line) for line in result.err.splitlines() if "shardctl.progress/1" in line]
    done = [line["bytes_done"] for line in lines]
    checks.that(bool(lines) and done == sorted(done) and done[-1] == lines[-1]["bytes_total"],
                f"progress, {launch.name}: grows to the total", result)
    (work / "drawn.pt").unlink(missing_ok=True)


def check_progress_of_ranks(checks: h.Checks, work: Path, launch: h.Launch) -> None:
    """With -v each rank also logs its own part, in whole lines; the sum of the parts equals rank 0's figure for
    all."""
    result = h.run(launch, ["gather", "model.safetensors", "-o", "drawn.pt", "--progress", "json", "-v"], cwd=work)
    lines = [json.loads(line) for line in result.err.splitlines() if line.startswith("{")]
    last = {line["rank"]: line["bytes_done"] for line in lines}
    checks.that(set(last) == {None, 0, 1} and last[0] + last[1] == last[None],
                f"progress, {launch.name}: each rank's part", result)
    (work / "drawn.pt").unlink(missing_ok=True)


def main() -> None:
    with h.checked() as (checks, work):
        h.make_model(work / "model.safetensors", 1)
        whole = (work / "model.safetensors").read_bytes()
        (work / "damaged.safetensors").write_bytes(whole[:-100])
        for launch in launches():
            check_shared_failure(checks, work, launch)
            if "threads" not in launch.name:
                check_all_end_alike(checks, work, launch)
                check_usage(checks, work, launch)
        for launch in (h.threads(4), h.mpirun(4, "mpi"), h.mpirun(2, "gloo")):
            check_progress(checks, work, launch)
        for launch in (h.threads(2), h.mpirun(2, "mpi")):
            check_progress_of_ranks(checks, work, launch)
        check_error_file(checks, work)
        check_logs(checks, work)


if __name__ == "__main__":
    main()
