"""The commonest wrong first guesses get the line that works: each case is a command, its exit code and words of the answer."""
import io
import os
import pathlib
import subprocess
import tarfile

from int_tensors import SHARDCTL, WORK, numbers, write

DATA = pathlib.Path(os.environ["SHARD_DATA"])


def answer(expect, *words):
    done = subprocess.run([SHARDCTL, *map(str, words)], cwd=WORK, capture_output=True, text=True)
    assert done.returncode == expect, f"{words}: exit {done.returncode}, expected {expect}\n{done.stdout}{done.stderr}"
    return done.stderr


def hint(expect, *words):
    """The text after "hint:" in the answer."""
    err = answer(expect, *words)
    assert "hint: " in err, f"{words}: no hint in\n{err}"
    return err.split("hint: ", 1)[1].strip()


def is_hint(wanted, expect, *words):
    found = hint(expect, *words)
    assert found == wanted, f"{words}: the hint is\n  {found}\nand not\n  {wanted}"


def runs(line):
    """A hint that is a whole command must work unchanged."""
    done = subprocess.run(["bash", "-c", line.replace("shardctl ", SHARDCTL + " ", 1)], cwd=WORK, capture_output=True, text=True)
    assert done.returncode == 0, f"{line}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def of_verbs():
    is_hint("did you mean 'gather' or 'export'?", 2, "merge", "ckpt")
    is_hint("did you mean 'inspect'?", 2, "inspct", "ckpt")
    is_hint("shardctl gather m.safetensors -o whole.safetensors", 2, "gather", "m.safetensors", "whole.safetensors")
    runs(hint(2, "gather", "m.safetensors", "whole.safetensors"))
    # A second source that exists is a source.
    is_hint("shardctl gather m.safetensors n.safetensors -o DST", 2, "gather", "m.safetensors", "n.safetensors")
    is_hint("shardctl split m.safetensors --ranks 2 -o parts", 2, "split", "m.safetensors", "parts", "--ranks", "2")


def of_destinations():
    for suffix, near in ((".safetensor", ".safetensors"), (".safetensosr", ".safetensors"), (".pht", ".pt"), (".hdf", ".hdf5")):
        found = hint(2, "gather", "m.safetensors", "-o", "out" + suffix)
        assert f"did you mean 'out{near}'?" in found, found
    for suffix in (".gguf", ".zip", ".onnx"):
        assert "slash at its end" in hint(2, "gather", "m.safetensors", "-o", "out" + suffix)
    assert not [each for each in WORK.iterdir() if each.name.startswith("out")], "a refused destination was made"
    for suffix in (".ckpt", ".pth.tar", ".pth", ".pt"):
        answer(0, "gather", "m.safetensors", "-o", "torch" + suffix)
        assert (WORK / ("torch" + suffix)).read_bytes()[:2] == b"PK", suffix
    # Dots in the name of a folder, a slash, a format or a layout leave no doubt.
    for at, extra in (("Qwen2.5-7B", ()), ("step.1", ()), ("a.safetensor/", ()), ("b.dcp", ("--to", "dcp"))):
        answer(0, "gather", "m.safetensors", "-o", at, *extra)
        assert (WORK / at).is_dir(), at
    answer(0, "split", "m.safetensors", "-o", "c.new", "--ranks", 2)
    assert "torch" in hint(2, "convert", "m.safetensors", "-o", "d", "--to", "pt")


def of_sources():
    found = answer(3, "inspect", "org/name")
    assert "Hugging Face Hub" in found and "hf download org/name --local-dir name" in found, found
    for path in ("./org", "a/b/c", "org/name.safetensors", "/org"):
        assert "Hub" not in answer(3, "inspect", path), path
    ckpt = WORK / "ckpt"
    subprocess.run(["cp", "-r", DATA / "demo/ckpt", ckpt], check=True)
    items = sorted("ckpt/" + each.name for each in ckpt.glob("*.distcp"))
    assert len(items) > 1
    is_hint("shardctl gather ckpt -o m.pt", 2, "gather", *items, "-o", "m.pt")
    runs(hint(2, "gather", *items, "-o", "m.pt"))
    is_hint("shardctl inspect ckpt", 2, "inspect", items[-1])
    is_hint("shardctl inspect ckpt", 2, "inspect", "ckpt/.metadata")
    runs(hint(2, "verify", items[0]))
    assert "m.safetensors: a dcp checkpoint is one folder" in answer(2, "inspect", "m.safetensors", "--from", "dcp")


def of_packed_files():
    weights = (WORK / "m.safetensors").read_bytes()
    for name, mode in (("m.nemo", "w"), ("it's.tar", "w"), ("old.nemo", "w:gz"), ("b.tar.gz", "w:gz")):
        with tarfile.open(WORK / name, mode) as tar:
            info = tarfile.TarInfo("weights.safetensors")
            info.size = len(weights)
            tar.addfile(info, io.BytesIO(weights))
        folder = name.split(".")[0]
        runs(hint(8, "inspect", name))
        answer(0, "inspect", folder)
    subprocess.run(["gzip", "-k", WORK / "n.safetensors"], check=True)
    os.rename(WORK / "n.safetensors", WORK / "kept")
    is_hint("gzip -dc n.safetensors.gz > n.safetensors", 8, "inspect", "n.safetensors.gz")
    runs(hint(8, "inspect", "n.safetensors.gz"))
    assert (WORK / "n.safetensors").read_bytes() == (WORK / "kept").read_bytes()


def of_names():
    nested = DATA / "torch/nested.pt"
    assert "only tensors have slices" in answer(2, "cat", nested, "step[0:1]")
    is_hint(f"shardctl cat {nested} step", 2, "cat", nested, "step[0:1]")
    listing = hint(3, "cat", "m.safetensors", "*norm*")
    assert listing == "shardctl inspect m.safetensors --include '**norm**'", listing
    assert "layers.0.norm.weight" in runs(listing)
    is_hint("did you mean '**norm**'?", 2, "inspect", "m.safetensors", "--include", "*norm*")
    is_hint("did you mean '**=float64'?", 2, "convert", "f.safetensors", "-o", "x.pt", "--cast", "*=float64")
    is_hint("list the names with 'shardctl inspect'", 3, "cat", "m.safetensors", "*nothing-like-it*")


def of_options():
    args = DATA / "torch/nested.pt"
    is_hint(f"shardctl gather {args} -o x.safetensors --objects drop", 8, "gather", args, "-o", "x.safetensors", "--objects", "keep")
    is_hint(f"shardctl gather {args} -o x.safetensors --objects drop", 8, "gather", args, "--objects=keep", "-o", "x.safetensors")


def of_ranks():
    found = hint(2, "reshard", "ckpt", "-o", "x", "--world-size", "6")
    assert "shardctl reshard ckpt -o x --ranks 6" in found, found
    assert "--rank " in hint(2, "gather", "ckpt", "-o", "x", "--world-size", "6")


def of_both_sides():
    write(WORK / "plain.safetensors", {"a": ([2], [1, 2]), "model.b": ([2], [3, 4])})
    write(WORK / "wrapped.safetensors", {"model.a": ([2], [1, 2]), "model.model.b": ([2], [3, 4])})
    answer(1, "diff", "wrapped.safetensors", "plain.safetensors", "--strip-prefix", "model.")
    answer(0, "diff", "wrapped.safetensors", "plain.safetensors", "--strip-prefix-a", "model.")
    answer(0, "diff", "plain.safetensors", "wrapped.safetensors", "--strip-prefix-b", "model.")
    answer(0, "diff", "plain.safetensors", "wrapped.safetensors", "--add-prefix-a", "model.")
    answer(0, "diff", "wrapped.safetensors", "plain.safetensors", "--add-prefix-b", "model.")
    answer(0, "diff", "wrapped.safetensors", "plain.safetensors", "--rename-a", "^model\\.=")
    answer(0, "diff", "plain.safetensors", "wrapped.safetensors", "--rename-a", "^=model.")
    answer(2, "diff", "plain.safetensors", "wrapped.safetensors", "--strip-prefix-b", "absent.")


write(WORK / "m.safetensors", {"layers.0.norm.weight": ([4], numbers(4)), "layers.0.mlp.weight": ([4, 2], numbers(8))})
write(WORK / "n.safetensors", {"x": ([4], numbers(4))})
content = (WORK / "m.safetensors").read_bytes()
(WORK / "f.safetensors").write_bytes(content.replace(b'"I32"', b'"F32"'))
for check in (of_verbs, of_destinations, of_sources, of_packed_files, of_names, of_options, of_ranks, of_both_sides):
    check()
