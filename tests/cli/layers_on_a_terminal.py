#!/usr/bin/env python3
"""inspect on a terminal: equal layers share a line; --all, -v and a pipe list each tensor by its whole name."""
import os
import pty
import subprocess
import sys
import tempfile

from program import SHARDCTL, safetensors_files

LAYERS = 32


def write_model(path):
    safetensors_files.write(path, {f"model.layers.{layer}.{name}": ("U8", shape) for layer in range(LAYERS) for name, shape in
                                   (("mlp.up_proj.weight", [4, 2]), ("norm.weight", [2] if layer != 7 else [3]))})


def lines_on_terminal(*arguments):
    """The output of shardctl if its standard output is a pseudo-terminal."""
    leader, follower = pty.openpty()
    process = subprocess.Popen([SHARDCTL, *arguments], stdout=follower, stderr=subprocess.DEVNULL)
    os.close(follower)
    text = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # EIO: the other end is closed.
            break
        if not piece:
            break
        text += piece
    os.close(leader)
    if process.wait() != 0:
        sys.exit(f"FAIL: shardctl {arguments}: exit {process.returncode}")
    return text.decode().splitlines()


def check(is_true, what, lines):
    if not is_true:
        sys.exit("FAIL: {}\n{}".format(what, "\n".join(lines)))


with tempfile.TemporaryDirectory() as folder:
    model = os.path.join(folder, "m.safetensors")
    write_model(model)
    joined = lines_on_terminal("inspect", model)
    tensors = [line.split() for line in joined if line.startswith("model.")]
    names = [(words[0], words[-1] if words[-1].startswith("x") else "x1") for words in tensors]
    wanted = [
        ("model.layers.{0..31}.mlp.up_proj.weight", "x32"),
        ("model.layers.{0..6}.norm.weight", "x7"),
        ("model.layers.{8..31}.norm.weight", "x24"),
        ("model.layers.7.norm.weight", "x1"),
    ]
    check(sorted(names) == sorted(wanted), "the joined lines", joined)
    check("64 tensors, 321 elements" in joined[1], "the summary", joined)
    check(joined[2] == "uint8 321 bytes", "the bytes by dtype", joined)

    piped = subprocess.run([SHARDCTL, "inspect", model], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    for how, lines in {
        "--all": lines_on_terminal("inspect", model, "--all"),
        "-v": lines_on_terminal("inspect", model, "-v"),
        "a pipe": piped,
    }.items():
        whole = [line.split()[0] for line in lines if line.startswith("model.layers.")]
        check(len(set(whole)) == 2 * LAYERS and not any("{" in name for name in whole), how, lines)
