"""Ranks with a folder each write the same as one process, file by file; and if one of them fails, none has any
output.

node_local.py bytes|faults [--full]: the faults depend on timing.
"""
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import harness as h
from own_folders import LOCAL, NAMESPACES, WRITES, expected, has_old, held, join, make_source, on_hosts, put_old, run, spread


def check_same_bytes(checks: h.Checks, work: Path, launch: h.Launch, ranks: int, source: str) -> None:
    make_source(work, source, ranks)
    spread(work, source, ranks)
    name = WRITES[source][WRITES[source].index("-o") + 1]
    result = run(work, launch, [*WRITES[source], *LOCAL])
    what = f"{' '.join(WRITES[source][:1])} of {source}, {launch.name}"
    if checks.that(result.code == 0, f"{what}: exit 0", result):
        checks.that(h.same_tree(expected(work, source), join(work, ranks, name)) == "", f"{what}: the same bytes", result)
        checks.that(result.err.count("wrote") == 1, f"{what}: told once", result)


def check_reading(checks: h.Checks, work: Path, launch: h.Launch, ranks: int) -> None:
    """Printing verbs read files of other ranks."""
    make_source(work, "dcp", ranks)
    spread(work, "dcp", ranks)
    for words in (["digest"], ["inspect", "--json"], ["cat", "norm.weight"]):
        verb, rest = words[0], words[1:]
        alone = h.run(h.alone(), [verb, "dcp", *rest], cwd=work)
        result = run(work, launch, [verb, "src", *rest, "--local-input"])
        checks.that(result.code == 0 and result.out == alone.out.replace('"dcp"', '"src"', 1),
                    f"{verb}, {launch.name}: prints what one process does", result)


def is_told(result: h.Result, launch: h.Launch, code: int) -> bool:
    return result.code == (1 if "torchrun" in launch.name else code)


def check_damage(checks: h.Checks, work: Path, launch: h.Launch) -> None:
    """A shard that is absent, cut short or changed on one rank's disk."""
    make_source(work, "safetensors", 3)
    for what, code in (("absent", 3), ("cut", 4), ("twice", 4)):
        spread(work, "safetensors", 3)
        path = sorted((work / "rank2" / "src").glob("*.safetensors"))[0]
        if what == "absent":
            path.unlink()
        elif what == "cut":
            os.truncate(path, path.stat().st_size // 2)
        else:
            (work / "rank1" / "src" / path.name).write_bytes(path.read_bytes()[:-4])
        result = run(work, launch, ["gather", "src", "-o", "out", *LOCAL])
        checks.that(is_told(result, launch, code), f"{what} shard, {launch.name}: exit {code}", result)
        checks.that(path.name in result.err, f"{what} shard, {launch.name}: names the file", result)
        ranks = {"absent": (), "cut": ("rank 2",), "twice": ("ranks 1 and 2",)}[what]
        checks.that(all(words in result.err for words in ranks), f"{what} shard, {launch.name}: names the rank", result)
        check_nothing(checks, work, 3, f"{what} shard, {launch.name}", result)


def check_elements(checks: h.Checks, work: Path, launch: h.Launch) -> None:
    """A changed element is found by the rank that has it, while it reads for others."""
    make_source(work, "sharded", 2)
    spread(work, "sharded", 2)
    path = sorted((work / "rank1" / "src").iterdir())[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    result = run(work, launch, ["gather", "src", "-o", "out", *LOCAL])
    checks.that(is_told(result, launch, 4), f"changed element, {launch.name}: exit 4", result)
    checks.that("checksum" in result.err and path.name in result.err, f"changed element, {launch.name}: names the file", result)
    checks.that("rank 1" in result.err, f"changed element, {launch.name}: names the rank", result)
    check_nothing(checks, work, 2, f"changed element, {launch.name}", result)


def check_other_rank(checks: h.Checks, work: Path, launch: h.Launch) -> None:
    """Files of ranks that are on different ranks, or belong to a different number of ranks."""
    make_source(work, "sharded", 2)
    spread(work, "sharded", 2)
    (work / "rank0").rename(work / "rank9"), (work / "rank1").rename(work / "rank0"), (work / "rank9").rename(work / "rank1")
    result = run(work, launch, ["gather", "src", "-o", "out", *LOCAL])
    checks.that(is_told(result, launch, 4) and "expected rank" in result.err, f"swapped ranks, {launch.name}: exit 4", result)


def check_nothing(checks: h.Checks, work: Path, ranks: int, what: str, result: h.Result) -> None:
    there = [rank for rank in range(ranks) if (work / f"rank{rank}" / "out").exists()]
    checks.that(there == [], f"{what}: no rank has an output, but {there}", result)
    for rank in range(ranks):
        h.check_nothing_left(checks, work / f"rank{rank}", f"{what}: rank {rank} leaves nothing", result)


def check_slow(checks: h.Checks, work: Path, launch: h.Launch, is_stopped: bool) -> None:
    """A rank that takes long, or is stopped for a while: progress names it, and the job continues."""
    make_source(work, "dcp", 3)
    spread(work, "dcp", 3)
    form, words = ("json", '"waiting_for": [1]') if is_stopped else ("always", "waiting for rank 1")
    job, pid = held(work, launch, "copy", 1, [*WRITES["dcp"], *LOCAL, "--progress", form], 60)
    if is_stopped:
        os.kill(pid, signal.SIGSTOP)
    is_told = job.says(words, 30)
    if is_stopped:
        os.kill(pid, signal.SIGCONT)
    (work / "door").unlink()
    result = job.wait()
    what = f"{'stopped' if is_stopped else 'slow'} rank, {launch.name}"
    checks.that(is_told, f"{what}: progress says '{words}'", result)
    if checks.that(result.code == 0, f"{what}: exit 0 in the end", result):
        checks.that(h.same_tree(expected(work, "dcp"), join(work, 3, "out")) == "", f"{what}: the same bytes", result)


def check_full_disk(checks: h.Checks, work: Path, launch: h.Launch, phase: str) -> None:
    """A rank's disk is full: exit code 6 with its rank, and the destination is unchanged on every rank."""
    make_source(work, "dcp", 3)
    spread(work, "dcp", 3)
    put_old(work, 3)
    arguments = ["reshard", "src", "-o", "out", "--to", "torch-ranks", "--ranks", "3", *LOCAL, "--force"]
    job, pid = held(work, launch, phase, 1, arguments, 30)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (512, 512))
    (work / "door").unlink()
    result = job.wait(60)
    what = f"full disk at {phase}, {launch.name}"
    checks.that(is_told(result, launch, 6) and "rank 1: " in result.err, f"{what}: exit 6 with the rank", result)
    checks.that(all(has_old(work, 3)), f"{what}: the old destination stands everywhere", result)
    for rank in range(3):
        checks.that(h.left_overs(work / f"rank{rank}") == [], f"{what}: rank {rank} leaves nothing", result)


def check_lost_between(checks: h.Checks, work: Path, launch: h.Launch, how: signal.Signals) -> None:
    """A rank that dies when all are prepared and others have committed: these outputs stay, and the message names
    their ranks."""
    make_source(work, "dcp", 3)
    spread(work, "dcp", 3)
    put_old(work, 3)
    job, pid = held(work, launch, "publish", 1, [*WRITES["dcp"], *LOCAL, "--force"])
    for _ in range(500):
        if has_old(work, 3) == [False, True, False]:
            break
        time.sleep(0.01)
    time.sleep(0.3)  # The ranks report it at their next exchange.
    os.kill(pid, how)
    result = job.wait(60)
    if how == signal.SIGSTOP:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    what = f"{how.name} between commits, {launch.name}"
    if "mpirun" in launch.name and how == signal.SIGKILL:
        checks.that(result.code != 0, f"{what}: fails", result)  # With the signal's number: mpirun counts that.
    else:
        checks.that(is_told(result, launch, 7), f"{what}: exit 7", result)
        checks.that("committed on ranks: 0, 2; unknown on ranks: 1" in result.err,
                    f"{what}: says where the destination stands", result)
    checks.that(has_old(work, 3) == [False, True, False], f"{what}: it stands there", result)


def check_old_file(checks: h.Checks, work: Path, launch: h.Launch) -> None:
    """A destination that is one file: on ranks that own nothing, --force removes an old one; without it, it is
    refused."""
    make_source(work, "dtensor", 2)
    spread(work, "dtensor", 2)
    old = work / "rank1" / "out.pt"
    old.write_text("old")
    result = run(work, launch, [*WRITES["dtensor"], *LOCAL])
    checks.that(is_told(result, launch, 5) and old.read_text() == "old" and not (work / "rank0" / "out.pt").exists(),
                f"old file, {launch.name}: refused without --force", result)
    result = run(work, launch, [*WRITES["dtensor"], *LOCAL, "--force"])
    if checks.that(result.code == 0, f"old file, {launch.name}: exit 0", result):
        checks.that(h.same_tree(expected(work, "dtensor"), join(work, 2, "out.pt")) == "" and not old.exists(),
                    f"old file, {launch.name}: the new one alone", result)


def check_nccl(checks: h.Checks, work: Path) -> None:
    """A GPU for each rank, otherwise exit code 8 with both numbers."""
    launch, gpus = h.mpirun(2, "nccl"), len(list(Path("/dev").glob("nvidia[0-9]*")))
    if "nccl" not in h.backends():
        return print("SKIPPED: nccl, which this build or machine does not have")
    if gpus >= 2:
        return check_same_bytes(checks, work, launch, 2, "dcp")
    print(f"SKIPPED: pieces over nccl, which needs 2 GPUs: {gpus} here")
    make_source(work, "dcp", 2)
    spread(work, "dcp", 2)
    result = run(work, launch, [*WRITES["dcp"], *LOCAL])
    checks.that(result.code == 8 and f"2 local ranks on {gpus} GPUs" in result.err, "nccl without GPUs: exit 8, both numbers", result)
    check_nothing(checks, work, 2, "nccl without GPUs", result)


def check_lost(checks: h.Checks, work: Path, launch: h.Launch, phase: str, how: signal.Signals = signal.SIGKILL) -> None:
    """A rank that is killed or stopped before all are prepared: the destination is on every rank as it was."""
    make_source(work, "dcp", 3)
    spread(work, "dcp", 3)
    put_old(work, 3)
    job, pid = held(work, launch, phase, 1, [*WRITES["dcp"], *LOCAL, "--force"])
    begin = time.monotonic()
    os.kill(pid, how)
    result = job.wait(40)
    what = f"{how.name} at {phase}, {launch.name}"
    checks.that(result.code != 0 and time.monotonic() - begin < 20, f"{what}: fails in time", result)
    checks.that(all(has_old(work, 3)), f"{what}: every rank has what it had, not {has_old(work, 3)}", result)
    for rank in (0, 2):
        left = [path for path in h.left_overs(work / f"rank{rank}") if "/.out.shardctl-" in path]
        checks.that("mpirun" in launch.name or left == [], f"{what}: rank {rank} leaves nothing, but {left}", result)


def check_resume(checks: h.Checks, work: Path, launch: h.Launch) -> None:
    """A rank is killed when all is written: the next run reads that back and sends nothing; the one after it does nothing."""
    h.make_model(work / "large.safetensors", 64)
    subprocess.run([h.SHARDCTL, "split", "large.safetensors", "-o", "large", "--ranks", "4", "-q"], cwd=work, env=h.BASE, check=True)
    spread(work, "large", 3)
    arguments = ["reshard", "src", "-o", "out", "--ranks", "3", "--dim", "1", "--checksum", "xxh3", *LOCAL]
    job, pid = held(work, launch, "finish", 1, [*arguments, "--resume"])
    os.kill(pid, signal.SIGKILL)
    killed, what = job.wait(40), f"resumed, {launch.name}"
    checks.that(killed.code != 0 and any(h.left_overs(work / f"rank{rank}") for rank in range(3)), f"{what}: something is left", killed)
    result = run(work, launch, [*arguments, "--resume", "--json"])
    if checks.that(result.code == 0, f"{what}: exit 0", result):
        told = json.loads(result.out)
        checks.that(told["bytes_kept"] >= 8 << 20, f"{what}: keeps {told['bytes_kept']} bytes and writes {told['bytes_written']}", result)
        alone = h.run(h.alone(), ["reshard", "large", "-o", "large-alone", "--ranks", "3", "--dim", "1"], cwd=work)
        joined = join(work, 3, "out")
        (joined / "shardctl.manifest.json").unlink()
        checks.that(h.same_tree(work / "large-alone", joined) == "", f"{what}: the same bytes", alone)
    shutil.rmtree(work / "large-alone")


def check_if_changed(checks: h.Checks, work: Path, launch: h.Launch) -> None:
    """Done once, and repeated only if a rank lost its data."""
    make_source(work, "dcp", 3)
    spread(work, "dcp", 3)
    arguments, what = [*WRITES["dcp"], *LOCAL, "--if-changed", "--json"], f"--if-changed, {launch.name}"
    for unchanged in False, True:
        result = run(work, launch, arguments)
        checks.that(result.code == 0 and json.loads(result.out)["unchanged"] == unchanged, f"{what}: unchanged is {unchanged}", result)
    moved = next((work / "rank2" / "out").iterdir())
    moved.rename(work / "rank0" / "out" / moved.name)
    result = run(work, launch, arguments)
    checks.that(is_told(result, launch, 5), f"{what}: a file of another rank is not taken for its own", result)


def check_plan(checks: h.Checks, work: Path, launch: h.Launch) -> None:
    """A dry run prints sums over ranks, and writes nothing."""
    make_source(work, "dcp", 3)
    spread(work, "dcp", 3)
    result = run(work, launch, [*WRITES["dcp"], *LOCAL, "--dry-run", "--json"])
    alone = json.loads(h.run(h.alone(), ["reshard", "dcp", "-o", "nothing", "--ranks", "3", "-n", "--json"], cwd=work).out)
    if checks.that(result.code == 0, f"dry run, {launch.name}: exit 0", result):
        plan = json.loads(result.out)
        same = ("files", "tensors", "bytes_to_read", "bytes_to_write")
        checks.that({key: plan[key] for key in same} == {key: alone[key] for key in same},
                    f"dry run, {launch.name}: the numbers of one process", result)
    check_nothing(checks, work, 3, f"dry run, {launch.name}", result)


def check_namespaces(checks: h.Checks, work: Path, hosts: int, source: str, how: str) -> None:
    """Hosts with separate networks and mounts: the same path is a different folder on each."""
    make_source(work, source, hosts)
    spread(work, source, hosts)
    launch = h.Launch(how, [NAMESPACES, str(hosts), str(work), *on_hosts(hosts)[how]], [])
    result = h.Job(launch, [h.SHARDCTL, *WRITES[source], *LOCAL], cwd=work).wait()
    if result.code == 77:
        print("SKIPPED: namespaces, which this kernel or user does not have")
        return
    what = f"{source}, {hosts} hosts, {how}"
    if checks.that(result.code == 0, f"{what}: exit 0", result):
        name = WRITES[source][WRITES[source].index("-o") + 1]
        checks.that(h.same_tree(expected(work, source), join(work, hosts, name)) == "", f"{what}: the same bytes", result)


def check_all_bytes(checks: h.Checks, work: Path) -> None:
    makers = [lambda n: h.mpirun(n, "mpi"), lambda n: h.mpirun(n, "gloo"), h.torchrun]
    cases = [(make(n), n, source) for make in makers for n in (2, 3, 4) for source in WRITES]
    for launch, ranks, source in cases if h.FULL else cases[::5]:
        check_same_bytes(checks, work, launch, ranks, source)
    for launch in (h.mpirun(3, "mpi"), h.torchrun(3)) if h.FULL else (h.mpirun(3, "mpi"),):
        check_reading(checks, work, launch, 3)
        check_plan(checks, work, launch)
        check_damage(checks, work, launch)
        check_if_changed(checks, work, launch)
    for launch in (h.mpirun(2, "gloo"), h.torchrun(2)) if h.FULL else (h.torchrun(2),):
        check_elements(checks, work, launch)
        check_other_rank(checks, work, launch)
        check_old_file(checks, work, launch)
    hosts = [(2, "dcp", how) for how in on_hosts(2)] + [(2, "sharded", "by hand"), (4, "dcp", "by hand")]
    for case in hosts if h.FULL else ((3, "dcp", "by hand"), (2, "dcp", "mpirun")):
        check_namespaces(checks, work, *case)
    check_nccl(checks, work)


def check_all_faults(checks: h.Checks, work: Path) -> None:
    mpi, gloo, torchrun = h.mpirun(3, "mpi"), h.mpirun(3, "gloo"), h.torchrun(3)
    phases, kill, stop = ("catalog", "plan", "begin", "copy", "finish", "commit"), signal.SIGKILL, signal.SIGSTOP
    lost = [(torchrun, "copy", kill), (torchrun, "commit", kill), (mpi, "copy", stop), (gloo, "copy", stop)]
    full = [(mpi, "copy"), (torchrun, "finish")]
    between = [(gloo, stop), (torchrun, kill)]
    slow = [(mpi, True), (torchrun, False)]
    if h.FULL:
        lost = [(launch, phase, how) for launch in (mpi, gloo, torchrun) for phase in phases for how in (kill, stop)
                if (launch, how) != (torchrun, stop)]  # torchrun waits 30 s for a stopped rank.
        full = [(launch, phase) for launch in (mpi, gloo, torchrun) for phase in ("catalog", "plan", "begin", "copy", "finish")]
        between = [(launch, how) for launch in (mpi, gloo, torchrun) for how in (kill, stop)]
        slow = [(launch, is_stopped) for launch in (mpi, gloo, torchrun) for is_stopped in (False, True)]
    for launch, phase, how in lost:
        check_lost(checks, work, launch, phase, how)
    for launch, phase in full:
        check_full_disk(checks, work, launch, phase)
    for launch, how in between:
        check_lost_between(checks, work, launch, how)
    for launch, is_stopped in slow:
        check_slow(checks, work, launch, is_stopped)
    for launch in (mpi, gloo, torchrun) if h.FULL else (mpi,):
        check_resume(checks, work, launch)


def main() -> None:
    with h.checked() as (checks, work):
        h.make_model(work / "model.safetensors", 24 if h.FULL else 4)
        {"bytes": check_all_bytes, "faults": check_all_faults}[sys.argv[1]](checks, work)


if __name__ == "__main__":
    main()
