"""Which variables make a job of several ranks, and which are mistakes."""
import json
import re
import socket
from pathlib import Path

import harness as h

MISTAKES = {  # Variables that the message must name.
    "torchrun without an address": ({"RANK": "0", "WORLD_SIZE": "2"}, ["MASTER_ADDR", "MASTER_PORT"]),
    "torchrun without a size": ({"RANK": "0"}, ["WORLD_SIZE"]),
    "rank past the size": ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
                           ["RANK=2", "WORLD_SIZE=2"]),
    "no number": ({"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, ["RANK", "'x'"]),
    "half of Open MPI's": ({"OMPI_COMM_WORLD_RANK": "0"}, ["OMPI_COMM_WORLD_SIZE"]),
    "Open MPI's contradict": ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "2"},
                              ["OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=2"]),
    "half of PMI's": ({"PMI_RANK": "0"}, ["PMI_SIZE"]),
    "half of Slurm's": ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}, ["SLURM_PROCID"]),
    "PMIx alone": ({"PMIX_RANK": "0"}, ["PMIX_RANK"]),
    "torchrun's left in the shell, under mpirun": (
        {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "OMPI_COMM_WORLD_RANK": "1",
         "OMPI_COMM_WORLD_SIZE": "2"}, ["RANK=0", "WORLD_SIZE=1", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2"]),
}


def slurm(rank: int) -> dict[str, str]:
    return {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": str(rank),
            "SLURM_TASKS_PER_NODE": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "77",
            "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": "localhost"}


def pmi(rank: int) -> dict[str, str]:
    return {"PMI_RANK": str(rank), "PMI_SIZE": "2", "MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": "2"}


def by_torchrun(rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def check_mistakes(checks: h.Checks, work: Path) -> None:
    for what, (variables, names) in MISTAKES.items():
        for verb in (["gather", "model.safetensors", "-o", "out.safetensors"], ["env"]):
            result = h.run(h.alone(), verb, env=variables, cwd=work)
            checks.that(result.code == 2 and all(name in result.err for name in names), f"{what}, {verb[0]}: exit 2", result)
    checks.that(not (work / "out.safetensors").exists(), "mistakes write nothing")
    ignored = h.run(h.alone(), ["digest", "model.safetensors", "--launcher", "none"], env={"RANK": "0"}, cwd=work)
    checks.that(ignored.code == 0, "--launcher none ignores them", ignored)


def run_two(work: Path, variables: list[dict[str, str]], options: list[list[str]], name: str) -> list[h.Result]:
    jobs = [h.Job(h.alone(), [h.SHARDCTL, "gather", "model.safetensors", "-o", name, *options[rank]], env=variables[rank], cwd=work)
            for rank in (0, 1)]
    return [job.wait() for job in jobs]


def check_by_hand(checks: h.Checks, work: Path) -> None:
    here = f"127.0.0.1:{free_port()}"
    manual = [["--rank", str(rank), "--world-size", "2", "--rdzv", here] for rank in (0, 1)]
    ways = {"--rank and --world-size": ([{}, {}], manual),
            "torchrun's, set by hand": (lambda port: [by_torchrun(r) | {"MASTER_PORT": port} for r in (0, 1)], [[], []])}
    for name, variables in (("slurm", slurm), ("pmi", pmi)):
        ways[f"{name} --rdzv"] = ([variables(0), variables(1)], [["--rdzv", f"127.0.0.1:{free_port()}"]] * 2)
        ways[f"{name} on one host"] = ([variables(0), variables(1)], [[], []])
    for i, (what, (variables, options)) in enumerate(ways.items()):
        variables = variables(free_port()) if callable(variables) else variables
        results = run_two(work, variables, [[*each, "--timeout", "20"] for each in options], f"hand{i}.safetensors")
        for rank, result in enumerate(results):
            checks.that(result.code == 0, f"{what}: rank {rank} ends well", result)
        checks.that([result.err.count("wrote") for result in results] == [1, 0], f"{what}: rank 0 tells it", results[0])
        checks.that(h.same_tree(work / "one.safetensors", work / f"hand{i}.safetensors") == "", f"{what}: the same bytes")


def check_options(checks: h.Checks, work: Path) -> None:
    """Options that contradict the launcher, or are not a number of seconds."""
    inside = h.run(h.alone(), ["digest", "model.safetensors", "--local-ranks", "2"], env=by_torchrun(1), cwd=work)
    checks.that(inside.code == 2 and "in rank 1 of 2" in inside.err, "--local-ranks inside a job: exit 2", inside)
    for seconds in ("0", "-1", "nan", "inf", "1e30"):
        result = h.run(h.alone(), ["digest", "model.safetensors", "--timeout", seconds], cwd=work)
        checks.that(result.code == 2 and "seconds" in result.err, f"--timeout {seconds}: exit 2", result)


def check_settings(checks: h.Checks, work: Path) -> None:
    """Options in the environment of only one rank, as on hosts to which mpirun does not pass it."""
    for option, code in ({"SHARDCTL_RENAME": "norm=x"}, 2), ({"SHARDCTL_DRY_RUN": "1"}, 2), ({"SHARDCTL_THREADS": "1"}, 0):
        here = ["--world-size", "2", "--rdzv", f"127.0.0.1:{free_port()}", "--timeout", "20"]
        results = run_two(work, [{}, option], [["--rank", str(rank), *here] for rank in (0, 1)], "settings.safetensors")
        said = [result.err.count("different options from the environment") for result in results]
        for rank, result in enumerate(results):
            checks.that(result.code == code and said == [0, code // 2], f"{option} on rank 1: rank {rank}, exit {code}", result)
    (work / "settings.safetensors").unlink()


def check_missing_rank(checks: h.Checks, work: Path) -> None:
    """Late ranks are waited for as long as the user requests, and named."""
    options = ["--rank", "0", "--world-size", "3", "--rdzv", f"127.0.0.1:{free_port()}", "--timeout", "2"]
    result = h.run(h.alone(), ["digest", "model.safetensors", *options], cwd=work)
    checks.that(result.code == 7 and "ranks 1, 2 did not" in result.err, "absent ranks are named: exit 7", result)
    checks.that(result.seconds >= 2, f"absent ranks are waited for, {result.seconds:.2f} of 2 s", result)


def check_little_memory(checks: h.Checks, work: Path) -> None:
    """Rank 0 of a job over Gloo, whose threads run out of memory in different places."""
    for mib in range(336, 448, 16):
        options = ["--rank", "0", "--world-size", "2", "--backend", "gloo", "--rdzv", f"127.0.0.1:{free_port()}", "--timeout", "1"]
        limited = [*h.shell(f"ulimit -c 0; ulimit -v {mib * 1024}; exec"), h.SHARDCTL]
        if h.Job(h.alone(), [*limited, "--version"], cwd=work).wait().code != 0:
            continue  # Sanitizers need more.
        result = h.Job(h.alone(), [*limited, "digest", "model.safetensors", *options], cwd=work).wait()
        checks.that(result.code in (6, 7), f"{mib} MiB of memory: exit 6, or 7 if that suffices for the rendezvous", result)


def check_stranger(checks: h.Checks, work: Path) -> None:
    """A program that accepts connections at the address of rank 0, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        here = f"127.0.0.1:{silent.getsockname()[1]}"
        options = ["--rank", "1", "--world-size", "2", "--rdzv", here, "--timeout", "2"]
        result = h.run(h.alone(), ["digest", "model.safetensors", *options], cwd=work)
    checks.that(result.code == 7 and f"the program at {here} does not answer" in result.err, "a stranger: exit 7", result)
    checks.that(result.seconds < 12, f"a stranger: in time ({result.seconds:.1f} s)", result)


def check_other_files(checks: h.Checks, work: Path) -> None:
    """Ranks that find different checkpoints under the same path."""
    (work / "other").mkdir()
    h.run(h.alone(), ["gather", "model.safetensors", "-o", "other/model.safetensors", "--exclude", "norm.**"], cwd=work)
    rank_1_elsewhere = h.shell('if [ $OMPI_COMM_WORLD_RANK = 1 ]; then cd other; fi; exec')
    for verb in (["gather", "model.safetensors", "-o", str(work / "mixed.pt")], ["digest", "model.safetensors"]):
        result = h.Job(h.mpirun(2, "mpi"), [*rank_1_elsewhere, h.SHARDCTL, *verb], cwd=work).wait()
        checks.that(result.code == 2 and "rank 1 and rank 0: " in result.err, f"other files on rank 1, {verb[0]}: exit 2", result)
    checks.that(not (work / "mixed.pt").exists(), "other files on rank 1: nothing is written")


def check_batch_shell(checks: h.Checks, work: Path) -> None:
    variables = slurm(0)
    del variables["SLURM_STEP_ID"]
    result = h.run(h.alone(), ["digest", "model.safetensors"], env=variables, cwd=work)
    checks.that(result.code == 0 and "rank" not in result.err, "a batch shell is one process", result)


def check_env(checks: h.Checks, work: Path) -> None:
    found = json.loads(h.run(h.alone(), ["env", "--json"], env=slurm(1), cwd=work).out)
    wanted = {"schema": "shardctl.env/1", "launcher": "slurm", "rank": 1, "world_size": 2, "local_rank": 1, "local_world_size": 2}
    checks.that({key: found.get(key) for key in wanted} == wanted, f"env --json tells the launch: {found}")
    checks.that({"mpi", "gloo"} <= set(found["plugins"]), f"env --json tells the backends: {found['plugins']}")
    text = h.run(h.alone(), ["env"], env=slurm(1), cwd=work).out.splitlines()
    checks.that("launcher       slurm" in text and "world size     2" in text, f"env tells the launch: {text}")
    both = h.run(h.alone(), ["env", "--json"], env=slurm(1) | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, cwd=work)
    checks.that(json.loads(both.out)["launcher"] == "ompi", "mpirun inside a Slurm job: Open MPI wins", both)


def check_restart(checks: h.Checks, work: Path) -> None:
    """The second attempt finds the store of the first: once it failed before the ranks met, once they were killed after."""
    first_fails = 'if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then exit 3; fi;'
    first_meets = 'if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then "$@" --dry-run >/dev/null; kill -9 $$; fi;'
    for i, script in enumerate((first_fails, first_meets)):
        job = h.Job(h.torchrun(2, "--max-restarts", "1"),
                    [*h.shell(script), h.SHARDCTL, "gather", "model.safetensors", "-o", f"restart{i}.safetensors"], cwd=work)
        result = job.wait(60)
        checks.that(result.code == 0, f"restart {i}: works ({result.seconds:.1f} s)", result)
        checks.that(h.same_tree(work / "one.safetensors", work / f"restart{i}.safetensors") == "", f"restart {i}: the same bytes")


def check_two_in_one_script(checks: h.Checks, work: Path) -> None:
    script = f'{h.SHARDCTL} digest model.safetensors >first && {h.SHARDCTL} gather model.safetensors -o second.safetensors'
    for launch in (h.torchrun(2), h.mpirun(2, "gloo")):  # Open MPI can be started only once.
        result = h.Job(h.Launch(launch.name, launch.words, [], {"SHARDCTL_BACKEND": "gloo"}), ["bash", "-c", script], cwd=work).wait(60)
        if checks.that(result.code == 0, f"two in one script, {launch.name}: exit 0", result):
            checks.that(h.same_tree(work / "one.safetensors", work / "second.safetensors") == "", f"two in one script, {launch.name}: same bytes")
        (work / "second.safetensors").unlink(missing_ok=True)


def check_threads(checks: h.Checks, work: Path) -> None:
    found = []
    for i, variables in enumerate(({}, {"OMP_NUM_THREADS": "1"})):
        result = h.run(h.alone(), ["gather", "model.safetensors", "-o", f"threads{i}.safetensors", "-vv"], env=variables, cwd=work)
        found.append(re.findall(r"(\d+) threads", result.err))
    checks.that(found[0] == found[1] != [], f"OMP_NUM_THREADS=1 does not change -j: {found}")


def main() -> None:
    with h.checked() as (checks, work):
        h.make_model(work / "model.safetensors", 2)
        h.run(h.alone(), ["gather", "model.safetensors", "-o", "one.safetensors"], cwd=work)
        check_mistakes(checks, work)
        check_by_hand(checks, work)
        check_options(checks, work)
        check_settings(checks, work)
        check_missing_rank(checks, work)
        check_little_memory(checks, work)
        check_stranger(checks, work)
        check_other_files(checks, work)
        check_batch_shell(checks, work)
        check_env(checks, work)
        check_restart(checks, work)
        check_two_in_one_script(checks, work)
        check_threads(checks, work)


if __name__ == "__main__":
    main()
