"""Time and memory of checkpoints of many files, many tensors per rank, many checkpoints in a run's folder, and many names.

  many_files.py SHARDCTL [--files N] [--tensors N] [--ranks N] [--to FORMAT...] [--checkpoints N] [--names N] [--folder DIR]

Each is also measured with half the number, so a cost that is squared shows as a factor of 4. Each file of
torch-ranks describes the pieces of all ranks, so its bytes, and the time, are squared by the format.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import safetensors_files  # noqa: E402


def write(path: Path, names: list[str], shape: list[int]) -> None:
    safetensors_files.write(path, {name: ("F32", shape) for name in names})


def apart(work: Callable[..., None], *values: object) -> None:
    """Calls `work` in a process of its own. A child's memory, as the system counts it, is not below that of the process that starts it."""
    child = os.fork()
    if child == 0:
        work(*values)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, work


def measure(what: str, tool: str, *line: object) -> None:
    begin = time.monotonic()
    process = subprocess.Popen([tool, *map(str, line)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    processor = usage.ru_utime + usage.ru_stime
    print(f"| {what} | {line[0]} | {time.monotonic() - begin:.2f} s | {processor:.2f} s | {usage.ru_maxrss / 1024:.0f} MiB |", flush=True)
    assert code == 0, (line, code, said)


def many_files(tool: str, folder: Path, count: int) -> None:
    places = {}
    for i in range(count):
        name, file = f"layers.{i}.weight", f"model-{i + 1:06}-of-{count:06}.safetensors"
        write(folder / file, [name], [64])
        places[name] = file
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 256 * count}, "weight_map": places}))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    what = f"{count:,} safetensors files"
    measure(what, tool, "inspect", folder)
    measure(what, tool, "verify", folder)
    measure(what, tool, "gather", folder, "-o", folder.parent / "out.safetensors", "--no-fsync", "-q")
    (folder.parent / "out.safetensors").unlink(missing_ok=True)
    index.unlink()
    measure(what + " without an index", tool, "inspect", folder)


def many_tensors(tool: str, folder: Path, tensors: int, ranks: int, formats: list[str]) -> None:
    model = folder / "model.safetensors"
    apart(write, model, [f"layers.{i}.weight" for i in range(tensors)], [ranks])
    for to in formats:
        what = f"{tensors:,} tensors in each of {ranks} files, {to}"
        measure(what, tool, "split", model, "-o", folder / to, "--to", to, "--ranks", ranks, "--no-fsync", "-q")
        measure(what, tool, "inspect", folder / to)
        measure(what, tool, "gather", folder / to, "-o", folder / "out.safetensors", "--no-fsync", "-q")
        (folder / "out.safetensors").unlink(missing_ok=True)
        shutil.rmtree(folder / to, ignore_errors=True)


def many_checkpoints(tool: str, folder: Path, count: int) -> None:
    for i in range(count):
        step = folder / f"checkpoint-{(i + 1) * 100}"
        step.mkdir()
        write(step / "model.safetensors", [f"layers.{k}.weight" for k in range(20)], [64, 64])
        (step / "config.json").write_text('{"model_type": "llama"}')
        (step / "trainer_state.json").write_text("{}")
    what = f"{count:,} checkpoints in a run's folder"
    measure(what, tool, "inspect", folder)
    measure(what, tool, "export", folder, "-o", folder.parent / "exported", "--no-fsync", "-q")


def many_names(tool: str, folder: Path, count: int) -> None:
    """One file, whose names are in the order of their bytes, or in the order of a model's layers. Of 8 runs the least counts."""
    def write_in(order: Callable[[list[str]], list[str]]) -> None:
        names = [f"layers.{i // 768}.experts.{i // 3 % 256}.w{i % 3 + 1}.weight" for i in range(count)]
        write(folder / "model.safetensors", order(names), [4])

    for order, sort in ("in order", sorted), ("by layer", list):
        apart(write_in, sort)
        for _ in range(8):
            measure(f"{count:,} tensors, names {order}", tool, "inspect", folder / "model.safetensors")


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("tool")
    options.add_argument("--files", type=int, default=100_000)
    options.add_argument("--tensors", type=int, default=20_000)
    options.add_argument("--ranks", type=int, default=64)
    options.add_argument("--to", nargs="+", default=["dcp", "torch-ranks"])
    options.add_argument("--checkpoints", type=int, default=1000)
    options.add_argument("--names", type=int, default=1_000_000)
    options.add_argument("--folder")
    chosen = options.parse_args()
    tool = os.path.abspath(chosen.tool)
    print("| checkpoint | verb | time | processor | memory |\n|---|---|--:|--:|--:|")
    for part in 2, 1:
        for work, numbers in ((many_files, [chosen.files // part]), (many_tensors, [chosen.tensors, chosen.ranks // part, chosen.to]),
                              (many_checkpoints, [chosen.checkpoints // part]), (many_names, [chosen.names // part])):
            with tempfile.TemporaryDirectory(dir=chosen.folder) as text:
                folder = Path(text) / "source"
                folder.mkdir()
                if all(numbers):
                    work(tool, folder, *numbers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
