"""Times shardctl's verbs beside cp of the same bytes, interleaved in random order in one run.

    verbs.py --shardctl build/release/apps/shardctl/shardctl [--also NAME=PATH] [--rows a,b] [--fast] [--size MiB]
             [--tensors N] [--runs N] [--work FOLDER]

Each row is a whole process. `x cp` is the ratio of minima over the runs; cp runs twice in every case, and if the two
differ by more than 5 % the case is void. Inputs are hot, outputs are removed and the disk is synced outside the timed
region. Rows without `+ fsync` run with --no-fsync and are compared with plain cp, the others with cp and sync. If
nothing is copied, the first row runs twice in place of cp. Also printed: the least CPU time, peak resident memory, and
rchar and wchar over the bytes of the input.

--also runs a second shardctl beside each row, in the same run (before and after a change): `x NAME` is the row's minimum over
that of the other program. --rows takes the beginnings of the cases' names:

  gather-safetensors gather-torch reshard split-ranks split-files inner-256 inner-2048   --size MiB of tensors, RANKS ranks
  small-dcp small-dcp-ranks small-torch small-torch-ranks   --tensors tensors of 4 KiB from a safetensors file: to dcp whole
                    and cut for RANKS ranks (an item per tensor and rank), to one .pt, to a file of ShardedTensors a rank
  inspect-tensors inspect-more-tensors   the header of a safetensors file of --tensors, and ten times as many, tiny tensors
  view-step view-transposed view-expanded   digest, gather and diff (with itself) of a .pt file of x[:, ::2], x.T or
                    x.expand(2, -1, -1) of --view MiB of float32, beside cp of the file; gather to safetensors, so that elements
                    are put in order. --bits of each byte are random, the others 0
  deflated-step deflated-transposed deflated-expanded   the same, zipped again with deflate, beside cp of the file that is not
                    (the bytes that the view spans); `x inflate` is over inflating the storage to a file by Python's zipfile
  inspect-chunks    `.metadata` of a dcp checkpoint of --tensors tiny chunks on RANKS ranks
  start             --version
"""
import argparse
import itertools
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.append(str(Path(__file__).resolve().parent.parent / "hostile"))
import safetensors_files  # noqa: E402
from build import dict_of, pickled, tensor  # noqa: E402

RANKS = 4
Shapes = dict[str, tuple[int, ...]]


def write_safetensors(path: Path, shapes: Shapes) -> None:
    """Random bf16 tensors."""
    safetensors_files.write(path, {name: ("BF16", shape) for name, shape in shapes.items()}, itertools.repeat(os.urandom(1 << 24)))


def model(size: int) -> Shapes:
    width = max(64, round((size / 136) ** 0.5 / 64) * 64)
    layers = {f"layers.{i}.{part}.weight": shape for i in range(5) for part, shape in
              (("qkv", (3 * width, width)), ("out", (width, width)), ("up", (4 * width, width)), ("down", (width, 4 * width)))}
    return {"embed.weight": (4 * width + 3, width), **layers, "head.weight": (4 * width + 3, width), "bias": (7,)}


def inner(size: int, segment: int) -> Shapes:
    """4 tensors whose row, cut for RANKS ranks, leaves `segment` bytes to each."""
    return {f"w{i}": (size // (4 * RANKS * segment), RANKS * segment // 2) for i in range(4)}


def many(count: int, shape: tuple[int, ...]) -> Shapes:
    return {f"l.{i}.w": shape for i in range(count)}


def write_view(path: Path, size: int, view: str, method: int, bits: int) -> None:
    """A torch.save file of a view of a square float32 matrix of `size` bytes. So many bits of each byte are random."""
    side = int((size / 4) ** 0.5)
    shape, strides = {"step": ([side, side // 2], [side, 2]), "transposed": ([side, side], [1, side]),
                      "expanded": ([2, side, side], [0, side, 1])}[view]
    pickle = pickled(dict_of(x=tensor(shape, strides, count=side * side)))
    block = os.urandom(1 << 24).translate(bytes(i & (1 << bits) - 1 for i in range(256)))
    with zipfile.ZipFile(path, "w", method, compresslevel=1) as archive:
        for record, data in {"data.pkl": pickle, "byteorder": b"little", "version": b"3\n"}.items():
            archive.writestr(f"archive/{record}", data)
        with archive.open("archive/data/0", "w") as out:
            for begin in range(0, 4 * side * side, len(block)):
                out.write(block[:4 * side * side - begin])


@dataclass
class Case:
    name: str
    source: Callable[["Bench"], Path]
    rows: dict[str, str]  # Arguments of shardctl, with {src} and {out}.
    copies: bool = True
    copy: str = "cp -r {src} {out}/copy"  # The references of the rows.
    twin: Callable[["Bench"], Path] | None = None  # {twin}
    inflate: str = ""  # A second reference.
    repeat: int = 1  # Runs are multiplied by this, for cases that take milliseconds.


class Bench:
    def __init__(self, tools: dict[str, str], work: Path, size: int, tensors: int, runs: int, view_size: int,
                 bits: int):
        self.tools = tools  # The one that is measured first, then the others.
        self.work = work
        self.size = size
        self.tensors = tensors
        self.runs = runs
        self.view_size = view_size
        self.bits = bits

    def whole(self, name: str, shapes: Shapes) -> Path:
        path = self.work / f"{name}.safetensors"
        if not path.exists():
            write_safetensors(path, shapes)
        return path

    def cut(self, name: str, shapes: Shapes, dim: int) -> Path:
        if not (self.work / name).exists():
            subprocess.run([next(iter(self.tools.values())), "split", self.whole(name, shapes), "-o", self.work / name,
                            "--ranks", str(RANKS), "--dim", str(dim), "-q"], check=True)
        return self.work / name

    def view(self, view: str, method: int) -> Path:
        path = self.work / f"{view}-{method}.pt"
        if not path.exists():
            write_view(path, self.view_size, view, method, self.bits)
        return path

    def contenders(self, case: Case, source: Path) -> dict[str, str]:
        """Row to command line; the first two are the same."""
        commands = {}
        for row, arguments in case.rows.items():
            for name, tool in self.tools.items():
                commands[f"{row} ({name})" if name else row] = f"{tool} {arguments}".replace("{src}", str(source))
        if not case.copies:
            row = next(iter(commands))
            return {row: commands[row], f"{row} (A/A)": commands[row]} | commands
        twin = str(case.twin(self)) if case.twin else ""
        copy = case.copy.replace("{src}", str(source)).replace("{twin}", twin)
        copies = {"cp": copy, "cp (A/A)": copy}
        if case.inflate:
            copies["inflate"] = case.inflate.replace("{src}", str(source))
        if any("fsync" in row for row in commands):
            copies["cp + fsync"] = copy + " && sync -d $(find {out}/copy -type f) && sync {out}/copy"
        return copies | commands

    def measure(self, case: Case) -> None:
        source = case.source(self)
        need = sum(p.stat().st_size for p in ([source] if source.is_file() else source.rglob("*")) if p.is_file())
        commands = self.contenders(case, source)
        samples: dict[str, list[dict]] = {name: [] for name in commands}
        runs = self.runs * case.repeat
        for _ in range(runs):
            for name in random.sample(list(commands), len(commands)):
                out = self.work / "out"
                shutil.rmtree(out, ignore_errors=True)
                out.mkdir()
                samples[name].append(run(commands[name].replace("{out}", str(out)), self.work, sync=case.copies))
                shutil.rmtree(out)
        first, again, *_ = least = {name: min(s["wall"] for s in each) for name, each in samples.items()}
        control = least[again] / least[first]
        print(f"\n{case.name}: {need / 1e9:.3f} GB, {runs} runs, A/A {control:.2f}{'' if 0.95 <= control <= 1.05 else ' (VOID)'}\n")
        self.print_table(case, samples, least, need)

    def print_table(self, case: Case, samples: dict[str, list[dict]], least: dict[str, float], need: int) -> None:
        others = [name for name in self.tools if name]
        titles = ["contender", "min s", "median s", *(["x cp"] if case.copies else []),
                  *(["x inflate"] if case.inflate else []), *(f"x {name}" for name in others)]
        titles += ["CPU s", "RSS MiB", "read", "written"]
        print("| " + " | ".join(titles) + " |\n|---|" + "--:|" * (len(titles) - 1))
        for name, each in samples.items():
            cells = [name, f"{least[name]:.3f}", f"{statistics.median(s['wall'] for s in each):.3f}"]
            if case.copies:
                cells.append(f"{least[name] / least['cp + fsync' if 'fsync' in name else 'cp']:.2f}")
            if case.inflate:
                cells.append(f"{least[name] / least['inflate']:.2f}")
            cells += [f"{least[name] / least[f'{name} ({other})']:.2f}" if f"{name} ({other})" in least else "-" for other in others]
            cells += [f"{min(s['cpu'] for s in each):.2f}", f"{max(s['rss'] for s in each):.0f}"]
            cells += [f"{each[0]['read'] / need:.3f}", f"{each[0]['written'] / need:.3f}"]
            print("| " + " | ".join(cells) + " |", flush=True)


def run(command: str, work: Path, sync: bool) -> dict:
    if sync:
        os.sync()
    usage = work / "usage"
    start = time.perf_counter()
    process = subprocess.Popen(["/usr/bin/time", "-q", "-o", usage, "-f", "%M %U %S", "sh", "-c", command],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    wall = time.perf_counter() - start
    io = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
    errors = process.communicate()[1]
    if process.returncode:
        raise SystemExit(f"{command}: exit {process.returncode}\n{errors.decode()}")
    rss, user, system = map(float, usage.read_text().split()[-3:])
    return {"wall": wall, "cpu": user + system, "rss": rss / 1024, "read": int(io["rchar"]), "written": int(io["wchar"])}


def both(name: str, arguments: str) -> dict[str, str]:
    return {f"{name} + fsync": f"{arguments} -q", name: f"{arguments} -q --no-fsync"}


def cases() -> list[Case]:
    def rows(bench: Bench) -> Path:
        return bench.cut("rows", model(bench.size), 0)

    def whole(bench: Bench) -> Path:
        return bench.whole("rows", model(bench.size))

    def small(bench: Bench) -> Path:
        return bench.whole("small", many(bench.tensors, (RANKS, 512)))

    def segments(size: int) -> Callable[[Bench], Path]:
        return lambda bench: bench.cut(f"inner-{size}", inner(bench.size, size), 1)

    def tiny(times: int) -> Callable[[Bench], Path]:
        return lambda bench: bench.whole(f"tiny-{times}", many(times * bench.tensors, (8,)))

    gather = both("gather", "gather {src} -o {out}/new.safetensors")
    inspect = {"inspect": "inspect {src} -q", "inspect --json": "inspect {src} --json -q"}
    return [
        Case("gather-safetensors", rows, gather),
        Case("gather-torch", rows, both("gather", "gather {src} -o {out}/new.pt")),
        Case("reshard", rows, both("reshard 4 to 6", "reshard {src} -o {out}/new --ranks 6")),
        Case("split-ranks", whole, both("split", f"split {{src}} -o {{out}}/new --ranks {RANKS}")),
        Case("split-files", whole, both("split", "split {src} -o {out}/new --shards 5")),
        Case("inner-256", segments(256), gather),
        Case("inner-2048", segments(2048), gather),
        Case("small-dcp", small, {"convert": "convert {src} -o {out}/new --to dcp -q --no-fsync"}),
        Case("small-dcp-ranks", small, {"split": f"split {{src}} -o {{out}}/new --ranks {RANKS} -q --no-fsync"}),
        Case("small-torch", small, {"convert": "convert {src} -o {out}/new.pt -q --no-fsync"}),
        Case("small-torch-ranks", small, {"split": f"split {{src}} -o {{out}}/new --ranks {RANKS} --to torch-ranks -q --no-fsync"}),
        *views(),
        Case("inspect-tensors", tiny(1), inspect, copies=False),
        Case("inspect-more-tensors", tiny(10), inspect, copies=False),
        Case("inspect-chunks", lambda bench: bench.cut("chunks", many(bench.tensors // RANKS, (RANKS, 8)), 0), inspect, copies=False),
        Case("start", lambda bench: bench.whole("tiny", many(1, (8,))), {"--version": "--version"}, copies=False, repeat=20),
    ]


def views() -> list[Case]:
    rows = {"digest": "digest {src} -q", "gather": "gather {src} -o {out}/new.safetensors -q --no-fsync", "diff": "diff {src} {src} -q"}
    inflate = ("python3 -c 'import shutil, sys, zipfile; shutil.copyfileobj(zipfile.ZipFile(sys.argv[1]).open(\"archive/data/0\"), "
               "open(sys.argv[2], \"wb\"), 1 << 20)' {src} {out}/copy")

    def stored(view: str) -> Callable[[Bench], Path]:
        return lambda bench: bench.view(view, zipfile.ZIP_STORED)

    def deflated(view: str) -> Callable[[Bench], Path]:
        return lambda bench: bench.view(view, zipfile.ZIP_DEFLATED)

    views = ("step", "transposed", "expanded")
    return [*(Case(f"view-{view}", stored(view), rows) for view in views),
            *(Case(f"deflated-{view}", deflated(view), rows, copy="cp {twin} {out}/copy", twin=stored(view), inflate=inflate)
              for view in views)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shardctl", required=True)
    parser.add_argument("--also", metavar="NAME=PATH", action="append", default=[], help="another shardctl in the same run (repeatable)")
    parser.add_argument("--rows", default="", help="only cases whose names begin so, separated by commas")
    parser.add_argument("--fast", action="store_true", help="64 MiB, 10,000 tensors and 3 runs where not given")
    parser.add_argument("--size", type=int, help="MiB of tensors (default 1024)")
    parser.add_argument("--tensors", type=int, help="how many small tensors (default 100000)")
    parser.add_argument("--view", type=int, default=256, help="MiB of the matrix that is viewed (default 256)")
    parser.add_argument("--bits", type=int, default=6, help="random bits of each byte of it, 0 to 8 (default 6)")
    parser.add_argument("--runs", type=int, help="default 8")
    parser.add_argument("--work", type=Path, default=Path("/tmp/shardctl-verbs"))
    args = parser.parse_args()
    tools = {"": os.path.abspath(args.shardctl)}
    for name, path in (each.split("=", 1) for each in args.also):
        tools[name] = os.path.abspath(path)
    defaults = (64, 10_000, 3) if args.fast else (1024, 100_000, 8)
    size, tensors, runs = (given or default for given, default in zip((args.size, args.tensors, args.runs), defaults))
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    bench = Bench(tools, args.work, size << 20, tensors, runs, args.view << 20, args.bits)
    for case in cases():
        if case.name.startswith(tuple(args.rows.split(","))):
            bench.measure(case)
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
