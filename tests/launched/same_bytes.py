"""Any number of ranks writes and prints the same as one process."""
import re
import shutil
import subprocess
from pathlib import Path

import harness as h

WRITES = {
    "gather to safetensors": ["gather", "dcp", "-o", "OUT.safetensors"],
    "gather to torch": ["gather", "dcp", "-o", "OUT.pt"],
    "gather 3 files": ["gather", "dcp", "-o", "OUT", "--to", "safetensors", "--shards", "3"],
    "split to dcp": ["split", "model.safetensors", "-o", "OUT", "--to", "dcp", "--ranks", "3"],
    "split to sharded tensors": ["split", "model.safetensors", "-o", "OUT", "--to", "torch-ranks", "--as", "sharded_tensor",
                                 "--ranks", "3"],
    "split to dtensors": ["split", "model.safetensors", "-o", "OUT", "--to", "torch-ranks", "--as", "dtensor", "--ranks", "2"],
    "split to plain pieces": ["split", "model.safetensors", "-o", "OUT", "--to", "torch-ranks", "--as", "plain", "--ranks", "2"],
    "gather 2 files of torch": ["gather", "ranks", "-o", "OUT", "--to", "torch", "--shards", "2"],
    "split to dcp-hf": ["split", "model.safetensors", "-o", "OUT", "--to", "dcp-hf", "--ranks", "2"],
    "reshard": ["reshard", "ranks", "-o", "OUT", "--ranks", "5"],
    "convert with a cast": ["convert", "dcp", "-o", "OUT.pt", "--cast", "**.weight=bfloat16"],
    "average": ["average", "dcp", "other.safetensors", "-o", "OUT", "--to", "dcp", "--weights", "0.3,0.7"],
    "gather the demo": ["gather", "demo", "-o", "OUT.pt"],
}
PRINTS = {
    "digest": (0, ["digest", "dcp"]),
    "digest --json": (0, ["digest", "dcp", "--json", "--algorithm", "sha256"]),
    "diff of equals": (0, ["diff", "dcp", "model.safetensors"]),
    "diff": (1, ["diff", "model.safetensors", "other.safetensors"]),
    "diff --json": (1, ["diff", "model.safetensors", "other.safetensors", "--json"]),
    "inspect": (0, ["inspect", "dcp"]),
    "inspect --json": (0, ["inspect", "dcp", "--json"]),
    "cat": (0, ["cat", "model.safetensors", "norm.weight"]),
    "dry run": (0, ["reshard", "ranks", "-o", "nothing", "--ranks", "5", "--dry-run", "--json", "-j", "2"]),
}


def make_inputs(work: Path) -> None:
    h.make_model(work / "model.safetensors", 8 if h.FULL else 4)
    other = bytearray((work / "model.safetensors").read_bytes())
    other[len(other) // 2] ^= 1
    (work / "other.safetensors").write_bytes(other)
    shutil.copytree(h.DATA / "demo" / "ckpt", work / "demo")
    for arguments in (["split", "model.safetensors", "-o", "dcp", "--to", "dcp", "--ranks", "4"],
                      ["split", "model.safetensors", "-o", "ranks", "--to", "torch-ranks", "--as", "dtensor", "--ranks", "2"]):
        subprocess.run([h.SHARDCTL, *arguments, "-q"], cwd=work, env=h.BASE, check=True)


def written(arguments: list[str], folder: str) -> list[str]:
    return [argument.replace("OUT", f"{folder}/out") for argument in arguments]


def output_of(arguments: list[str], folder: str) -> str:
    """The path that `arguments` write; torch's files contain their own name, so only the folder differs."""
    return written(arguments, folder)[arguments.index("-o") + 1]


def steady(text: str) -> str:
    """Removes the value that changes from run to run: the free space of the disk."""
    return re.sub(r'"free_bytes": ?\d+', "", text)


def check_write(checks: h.Checks, work: Path, launch: h.Launch, what: str, wanted: Path) -> None:
    arguments = WRITES[what]
    got = work / output_of(arguments, "got")
    result = h.run(launch, written(arguments, "got"), cwd=work)
    if checks.that(result.code == 0, f"{what}, {launch.name}: exit 0", result):
        checks.that(h.same_tree(wanted, got) == "", f"{what}, {launch.name}: the same bytes", result)
        checks.that(result.out == "", f"{what}, {launch.name}: nothing on stdout", result)
        checks.that(result.err.count("wrote") == 1, f"{what}, {launch.name}: told once", result)
    shutil.rmtree(got) if got.is_dir() else got.unlink(missing_ok=True)


def check_print(checks: h.Checks, work: Path, launch: h.Launch, what: str, wanted: str) -> None:
    code, arguments = PRINTS[what]
    result = h.run(launch, arguments, cwd=work)
    launcher_code = 1 if code and "torchrun" in launch.name else code
    checks.that(result.code == launcher_code, f"{what}, {launch.name}: exit {launcher_code}", result)
    checks.that(steady(result.out) == wanted, f"{what}, {launch.name}: the same text, once", result)


def cases() -> list[tuple[h.Launch, list[str], list[str]]]:
    """Which launch runs which of WRITES and PRINTS. In CI every launch and every case are run, but not every pair."""
    launches = [h.threads(n) for n in (1, 2, 3, 4, 8)]
    launches += [h.mpirun(n, backend) for n in (1, 2, 4) for backend in ("mpi", "gloo")]
    launches += [h.torchrun(n) for n in (1, 2, 4)]
    if h.FULL:
        return [(launch, list(WRITES), list(PRINTS)) for launch in launches]
    writes, prints = list(WRITES), list(PRINTS)
    real = [launch for launch in launches if "threads" not in launch.name]
    chosen = [(launch, writes, prints) for launch in launches if launch not in real]
    chosen.append((h.torchrun(2), ["average"], []))
    return chosen + [(launch, writes[i::len(real)], prints[i::len(real)]) for i, launch in enumerate(real)]


def main() -> None:
    with h.checked() as (checks, work):
        make_inputs(work)
        files, texts = {}, {}
        (work / "got").mkdir()
        for i, (what, arguments) in enumerate(WRITES.items()):
            (work / f"one{i}").mkdir()
            h.run(h.alone(), written(arguments, f"one{i}"), cwd=work)
            files[what] = work / output_of(arguments, f"one{i}")
        for what, (code, arguments) in PRINTS.items():
            result = h.run(h.alone(), arguments, cwd=work)
            checks.that(result.code == code, f"{what}, one process: exit {code}", result)
            texts[what] = steady(result.out)
        for launch, writes, prints in cases():
            for what in writes:
                check_write(checks, work, launch, what, files[what])
            for what in prints:
                check_print(checks, work, launch, what, texts[what])


if __name__ == "__main__":
    main()
