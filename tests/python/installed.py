"""Tries an installed wheel in an environment with no other package: installed.py URL, where URL is that of the checkpoint of the
demo, whose certificate SSL_CERT_FILE has. scripts/package check-wheel runs it."""
import importlib.machinery
import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

import shardctl

SOURCE = Path(__file__).resolve().parents[2]
CHECKPOINT = SOURCE / "tests/data/demo/ckpt"
IMPORT_MS = 30
HAS_MODULE = sys.version_info >= (3, 10)


def wheel_tag() -> str:
    lines = (importlib.metadata.distribution("shardctl").read_text("WHEEL") or "").splitlines()
    return next(line.split(": ")[1] for line in lines if line.startswith("Tag"))


def import_ms() -> float:
    """The least processor time of 15 starts, without that of Python itself."""
    code = "import time; begin = time.process_time(); import shardctl; print((time.process_time() - begin) * 1000)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(15))


def check_module() -> None:
    """Reads a folder of ranks, one by HTTPS, and an HDF5 file, whose parser is the program."""
    module = next(Path(shardctl.__file__).parent.glob("_native.*"))
    is_stable = sys.version_info >= (3, 12) and "t" not in sys.abiflags
    wanted = ".abi3.so" if is_stable else importlib.machinery.EXTENSION_SUFFIXES[0]
    assert module.name == "_native" + wanted, module
    for source in (CHECKPOINT, sys.argv[1]):
        with shardctl.open(source) as found:
            buffer = bytearray(8)
            assert found.read_into([(found["model.norm.weight"][:4], buffer)]) == 8 and any(buffer)
    with shardctl.open(SOURCE / "tests/data/hdf5/h5py316-filters.h5") as found:
        assert len(found) > 0
    with tempfile.TemporaryDirectory() as folder:
        shardctl.save({"step": 7}, Path(folder, "x.pt"))
        assert shardctl.open(Path(folder, "x.pt")).objects["step"] == 7


def check_end() -> None:
    """A process ends while daemon threads read. Before 3.14, Python then unwinds their stacks."""
    code = ("import sys, threading, shardctl\n"
            "found, begun = shardctl.open(sys.argv[1]), threading.Event()\n"
            "def work(handle):\n"
            "    while True:\n"
            "        handle.read_into(bytearray(handle.nbytes)); begun.set()\n"
            "for handle in found.values():\n"
            "    threading.Thread(target=work, args=[handle], daemon=True).start()\n"
            "begun.wait()\n")
    for _ in range(3):
        subprocess.run([sys.executable, "-c", code, CHECKPOINT], check=True)


def main() -> None:
    tag = wheel_tag()
    if HAS_MODULE:
        check_module()
        check_end()
    else:
        assert tag.startswith("py3-none-"), tag
    assert shardctl.inspect(CHECKPOINT).tensors == shardctl.inspect(sys.argv[1]).tensors
    subprocess.run([shardctl.program(), "inspect", sys.argv[1]], check=True, stdout=subprocess.DEVNULL)
    taken = import_ms()
    assert taken <= IMPORT_MS, f"import shardctl: {taken:.1f} ms"
    subprocess.run([sys.executable, SOURCE / "tests/python/module_test.py"], check=True, stderr=subprocess.STDOUT, stdout=sys.stdout)
    print(f"Python {sys.version.split()[0]}: {tag}, import shardctl {taken:.1f} ms", flush=True)


main()
