#!/usr/bin/env python3
"""Makes the golden files: one folder per torch version, written by that torch itself.

Usage: make_golden.py [--cache DIR] [--out DIR] [VERSION...]

Each version gets a virtual environment in the cache folder, which is made once (3 to 6 GB each).
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
OLD = ["numpy==1.26.4", "setuptools<81"]
STORAGE = ["safetensors==0.8.0", "huggingface_hub", "fsspec", "zstandard", "setuptools<81"]
VERSIONS = {  # torch: (Python, what else it needs)
    "1.13.1": ("3.10", OLD),
    "2.0.1": ("3.11", OLD),
    "2.2.2": ("3.11", OLD),
    "2.4.1": ("3.11", OLD),
    "2.8.0": ("3.11", ["numpy==2.2.6", "pyzstd", *STORAGE]),
    "2.11.0": ("3.11", ["numpy==2.4.6", *STORAGE]),
    "2.15.0": ("3.11", ["numpy==2.4.6", *STORAGE]),
}


def find_python(version):
    """An interpreter of `version`, on PATH or under pyenv."""
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"), "versions")
    candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]
    for candidate in filter(None, candidates):
        probe = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(probe, capture_output=True, text=True).stdout.strip() == version:
            return str(candidate)
    sys.exit(f"make_golden.py: Python {version} is needed, and is neither on PATH nor under pyenv")


def environment(cache, version):
    """The interpreter of the virtual environment with this torch."""
    folder = cache / version
    if not (folder / ".complete").exists():
        python, others = VERSIONS[version]
        subprocess.run([find_python(python), "-m", "venv", folder], check=True)
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            pip = [
                folder / "bin" / "python",
                "-m",
                "pip",
                "install",
                "-q",
                "--no-cache-dir",
                f"torch=={version}",
                *others,
            ]
            subprocess.run(pip, check=True, env={**os.environ, "TMPDIR": temporary})
        (folder / ".complete").touch()
    return folder / "bin" / "python"


def run(commands, folder):
    """Runs the ranks of one world side by side."""
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    ranks = [subprocess.Popen(command, cwd=folder, env=variables) for command in commands]
    if any([rank.wait() for rank in ranks]):
        sys.exit(f"make_golden.py: a writer failed: {commands[0]}")


def make(python, version, out):
    """Everything of one version; replaces the old files."""
    folder = out / version
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    result = {"torch": version, "checkpoints": {}, "not_written": {}}
    with tempfile.TemporaryDirectory() as temporary:
        parts = [pathlib.Path(temporary, f"{world}.json") for world in (1, 2, 4)]
        run([[python, HERE / "write_files.py", parts[0]]], folder)
        for world, part in zip((2, 4), parts[1:]):
            rendezvous = pathlib.Path(temporary, f"meet{world}")
            ranks = range(world)
            run([[python, HERE / "write_ranks.py", str(r), str(world), rendezvous, part] for r in ranks], folder)
        for part in parts:
            for key, entries in json.loads(part.read_text()).items():
                result[key].update(entries)
    (folder / "expected.json").write_text(to_text(result))
    missing = ", ".join(result["not_written"]) or "none"
    print(f"{version}: {len(result['checkpoints'])} checkpoints, not written: {missing}")


def to_text(result):
    """JSON with one line per tensor or object. Entries of several checkpoints appear once, under the first one's name."""
    contents, known, checkpoints = [], {}, []
    for path, entry in sorted(result["checkpoints"].items()):
        content = {key: entry.pop(key) for key in ("tensors", "objects")}
        if json.dumps(content) not in known:
            known[json.dumps(content)] = path
            lists = [
                f'   "{key}": [' + ",".join("\n    " + json.dumps(row) for row in rows) + "]"
                for key, rows in content.items()
            ]
            contents.append(f"  {json.dumps(path)}: {{\n" + ",\n".join(lists) + "}")
        if entry["loaded_by_torch"] is not True:
            entry = {**entry, "loaded_by_torch": False, "not_loaded_because": entry["loaded_by_torch"]}
        checkpoints.append(f"  {json.dumps(path)}: " + json.dumps({**entry, "content": known[json.dumps(content)]}))
    failures = [f"  {json.dumps(path)}: {json.dumps(reason)}" for path, reason in sorted(result["not_written"].items())]
    parts = {"checkpoints": checkpoints, "not_written": failures, "contents": contents}
    lines = [f' "{key}": {{\n' + ",\n".join(rows) + "}" for key, rows in parts.items()]
    return "{\n" + ",\n".join([f' "torch": {json.dumps(result["torch"])}', *lines]) + "\n}\n"


def main():
    default_cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"), "shardctl-golden")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", choices=[*VERSIONS, []], metavar="VERSION")
    parser.add_argument("--cache", type=pathlib.Path, default=default_cache)
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    arguments = parser.parse_args()
    cache = arguments.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    for version in arguments.versions or VERSIONS:
        make(environment(cache, version), version, arguments.out.resolve())


if __name__ == "__main__":
    main()
