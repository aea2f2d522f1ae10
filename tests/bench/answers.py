"""Times the commands of docs/answers beside cp of the same bytes, interleaved in random order. Needs torch and numpy.

  answers.py SHARDCTL [--size MIB] [--runs N] [--folder DIR]

Creates each source with --size MiB of weights in DIR. Each row is a whole process; nothing is flushed to a disk.
The kernel counts this Python process too, so smaller peaks of memory are seen only by /usr/bin/time.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import dequantize
import megatron
from deepspeed import copies, print_beside_cp, save, shapes_of


def of_fsdp(shardctl: str, work: Path, size: int) -> dict[str, list]:
    subprocess.run([sys.executable, Path(__file__).with_name("export.py"), "--make", work / "source", str(size)], check=True)
    save_folder, lost = work / "source/pytorch_model_fsdp_0", work / "lost"
    subprocess.run(["cp", "-r", save_folder, lost], check=True)
    (lost / ".metadata").unlink()
    out = work / "out"
    return copies(save_folder, out) | {
        "gather to safetensors": [shardctl, "gather", save_folder, "-o", out, "--to", "safetensors"],
        "gather to torch": [shardctl, "gather", save_folder, "-o", out, "--to", "torch"],
        "dcp_to_torch": [sys.executable, "-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch", save_folder, out],
        "export": [shardctl, "export", work / "source", "-o", out],
        "reshard 2 to 6 ranks": [shardctl, "reshard", save_folder, "-o", out, "--ranks", "6"],
        "repair --like": [shardctl, "repair", lost, "-o", out, "--like", save_folder],
        "verify": [shardctl, "verify", save_folder]}


def save_adam(folder: str, mebibytes: str) -> None:
    """A stage 3 save of 8 ranks, a third of it master weights and the rest Adam's states."""
    import torch

    save(Path(folder), 3, shapes_of(int(mebibytes) // 3), 8)
    for path in Path(folder).glob("*_optim_states.pt"):
        file = torch.load(path)
        flat = file["optimizer_state_dict"]["fp32_flat_groups"][0]
        states = {0: {"exp_avg": flat.clone(), "exp_avg_sq": flat.clone(), "step": torch.tensor(2.0)}}
        file["optimizer_state_dict"]["optimizer_state_dict"] = {"state": states, "param_groups": [{"lr": 0.1, "params": [0]}]}
        torch.save(file, path)


def of_deepspeed(shardctl: str, work: Path, size: int) -> dict[str, list]:
    maker = "import answers, sys; answers.save_adam(*sys.argv[1:])"
    subprocess.run([sys.executable, "-c", maker, work / "source", str(size)], cwd=Path(__file__).parent, check=True)
    out = work / "out"
    return copies(work / "source", out) | {
        "export": [shardctl, "export", work / "source", "-o", out],
        "convert to deepspeed-universal": [shardctl, "convert", work / "source", "-o", out, "--to", "deepspeed-universal"]}


def of_megatron(shardctl: str, work: Path, size: int) -> dict[str, list]:
    megatron.make(work / "hub", size)
    places = [word for glob, place in megatron.PLACES.items() for word in ("--place", f"{glob}={place}")]
    core_map = ["megatron:llama", "--hf-ref", work / "hub"]
    subprocess.run([shardctl, "convert", work / "hub", "-o", work / "source", "--to", "megatron-dist", "--mesh", "tp=4", *places, "--to-map",
                    *core_map, "-q"], check=True)
    out = work / "out"
    return copies(work / "source", out) | {"export --map": [shardctl, "export", work / "source", "-o", out, "--map", *core_map]}


def of_fp8(shardctl: str, work: Path, size: int) -> dict[str, list]:
    (work / "source").mkdir()
    dequantize.save(work / "source/model.safetensors", "fp8", size)
    out = work / "out"
    return copies(work / "source", out) | {
        "gather --dequantize": [shardctl, "gather", work / "source", "-o", out, "--to", "safetensors", "--dequantize"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shardctl")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default="/dev/shm")
    options = parser.parse_args()
    for make in (of_fsdp, of_deepspeed, of_megatron, of_fp8):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            work = Path(folder)
            rows = make(options.shardctl, work, options.size)
            for command in rows.values():
                if command[0] == options.shardctl:
                    command += ["-q"] if command[1] == "verify" else ["-q", "--no-fsync"]
            print_beside_cp(f"{make.__name__.removeprefix('of_')}, {options.size} MiB", rows, work / "out", options.runs)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
