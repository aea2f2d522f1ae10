"""Builds the wheel, installs it into an environment of its own without any other package, and tries it there.

Run by a Python that has the build backend (scripts/setup package). Environment: SHARDCTL is the program to put in;
SHARD_TEST_HOOKS as for module_test.py; SHARD_PYTHON has huggingface_hub 2, whose `hf` installs the wheel as an extension.
"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile
from pathlib import Path
from unittest import mock

SOURCE = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.pop("SHARDCTL")
sys.path.insert(0, str(SOURCE / "python"))
import hatch_build  # noqa: E402


def build(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/shardctl").symlink_to(PROGRAM)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder], check=True,
                   cwd=SOURCE / "python", env={**os.environ, "SHARDCTL_TREE": str(folder), "SOURCE_DATE_EPOCH": "1700000000"},
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return next(folder.glob("*.whl"))


# Replaces uv, which `hf` calls: the address of the extension's repository gives the wheels of a folder.
PLAYED_UV = """#!/bin/sh
set -e
case "$*" in
  "venv "*) exec {python} -m venv --without-pip "$2" ;;
  "pip install --reinstall --python $5 https://github.com/an-owner/hf-shardctl/archive/HEAD.zip")
    exec {python} -m pip -q --python "$5" install --no-index --find-links {wheels} hf-shardctl ;;
esac
echo "uv $*: unexpected" >&2
exit 1
"""


def pip(environment: Path, *arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", "--python", environment, *map(str, arguments)], check=True)


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.root = Path(cls.folder.name)
        cls.wheel = build(cls.root / "first")
        venv.create(cls.root / "env")
        pip(cls.root / "env", "install", "--no-index", "--no-deps", cls.wheel)

    def run_installed(self, *command: str) -> str:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        ended = subprocess.run([self.root / "env/bin" / command[0], *command[1:]], env=env, text=True, cwd=self.root,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        return ended.stdout

    def test_the_same_inputs_make_the_same_bytes(self) -> None:
        self.assertEqual(self.wheel.read_bytes(), build(self.root / "second").read_bytes())

    def test_it_holds_the_program_and_names_its_systems(self) -> None:
        self.assertRegex(self.wheel.name, r"^shardctl-[0-9.]+-py3-none-(manylinux|linux).*\.whl$")
        with zipfile.ZipFile(self.wheel) as archive:
            program = next(each for each in archive.infolist() if each.filename.endswith(".data/scripts/shardctl"))
            self.assertTrue(program.external_attr >> 16 & 0o111)
            self.assertIn("shardctl/py.typed", archive.namelist())
            metadata = archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()
        self.assertNotIn("Requires-Dist", metadata)

    def test_its_commands_are_the_program(self) -> None:
        version = subprocess.run([PROGRAM, "--version"], text=True, stdout=subprocess.PIPE, check=True).stdout
        self.assertEqual(self.run_installed("shardctl", "--version"), version)
        self.assertEqual(self.run_installed("python", "-m", "shardctl", "--version"), version)

    def test_the_module_passes_its_tests_as_installed(self) -> None:
        self.run_installed("python", str(SOURCE / "tests/python/module_test.py"))

    def test_it_works_in_a_folder_of_packages(self) -> None:
        target = self.root / "target"
        command = [sys.executable, "-m", "pip", "-q", "install", "--no-index", "--no-deps", "--target", target, self.wheel]
        subprocess.run(command, check=True)
        code = f"import sys; sys.path.insert(0, {str(target)!r}); import shardctl; print(shardctl.program())"
        self.assertEqual(self.run_installed("python", "-c", code), f"{target}/bin/shardctl\n")

    def test_a_program_with_libraries_lies_in_the_package_behind_a_launcher(self) -> None:
        (self.root / "tree/lib").mkdir(parents=True)
        (self.root / "tree/lib/libshard_gloo.so").write_bytes(Path(PROGRAM).read_bytes())
        wheel = build(self.root / "tree")
        place, packages = self.root / "with_libraries", f"lib/python3.{sys.version_info.minor}/site-packages"
        venv.create(place)
        pip(place, "install", "--no-index", "--no-deps", wheel)
        (place / packages / "torch").mkdir()
        (place / packages / "torch/__init__.py").write_text("raise ImportError('it is not imported')")
        script = place / packages / "shardctl/bin/shardctl"
        script.write_text("#!/bin/sh\necho $LD_LIBRARY_PATH $1\n")
        env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
        shown = subprocess.run([place / "bin/shardctl", "env"], env=env, text=True, stdout=subprocess.PIPE, check=True).stdout
        self.assertEqual(shown, f"{place / packages}/torch/lib env\n")
        strange = self.root / "strange"  # A folder of this name in the working directory is not torch.
        (strange / "torch").mkdir(parents=True)
        (strange / "torch/__init__.py").touch()
        command = [place / "bin/python", "-m", "shardctl", "env"]
        shown = subprocess.run(command, env=env, cwd=strange, text=True, stdout=subprocess.PIPE, check=True).stdout
        self.assertEqual(shown, f"{place / packages}/torch/lib env\n")

    def test_plugins_lie_where_the_program_of_an_environment_looks(self) -> None:
        plugin = self.root / "beside/plugins/libshard_gloo.so"
        plugin.parent.mkdir(parents=True)
        plugin.write_bytes(Path(PROGRAM).read_bytes())
        place = self.root / "with_plugins"
        venv.create(place)
        pip(place, "install", "--no-index", "--no-deps", build(self.root / "beside"))
        self.assertEqual((place / "lib/shardctl/libshard_gloo.so").read_bytes(), plugin.read_bytes())
        self.assertEqual((place / "bin/shardctl").read_bytes(), Path(PROGRAM).read_bytes())

    def test_a_module_lies_in_the_package_beside_the_program_as_one_file(self) -> None:
        module = self.root / "module/native/_native.abi3.so"
        module.parent.mkdir(parents=True)
        module.write_bytes(Path(PROGRAM).read_bytes())
        wheel = build(self.root / "module")
        self.assertIn("-cp312-abi3-", wheel.name)
        with zipfile.ZipFile(wheel) as archive:
            self.assertEqual(archive.read("shardctl/_native.abi3.so"), module.read_bytes())
            self.assertTrue(any(name.endswith(".data/scripts/shardctl") for name in archive.namelist()))

    def hf(self, home: Path, *command: object, code: int = 0) -> str:
        """Runs the command for a user with the home directory `home`. Returns its standard output."""
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        env.update(HOME=str(home), HF_HOME=str(home / "hub"), HF_HUB_OFFLINE="1", HF_HUB_DISABLE_UPDATE_CHECK="1",
                   PATH=f"{home / 'bin'}:{env['PATH']}")
        ended = subprocess.run([str(word) for word in command], env=env, text=True, capture_output=True, cwd=self.root)
        self.assertEqual(ended.returncode, code, f"{command}: {ended.stdout}{ended.stderr}")
        return ended.stdout

    @unittest.skipUnless(os.environ.get("SHARD_PYTHON"), "SHARD_PYTHON names no Python with huggingface_hub")
    def test_hf_installs_and_runs_it_as_an_extension(self) -> None:
        python, home, wheels = Path(os.environ["SHARD_PYTHON"]), self.root / "home", self.root / "wheels"
        hf, extension = python.parent / "hf", home / ".local/share/hf/extensions/hf-shardctl"
        repository = Path(shutil.copytree(SOURCE / "packaging/hf-shardctl", self.root / "hf-shardctl"))
        wheels.mkdir()
        (wheels / self.wheel.name).symlink_to(self.wheel)
        subprocess.run([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", wheels], check=True,
                       cwd=repository, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (home / "bin").mkdir(parents=True)
        (home / "bin/uv").write_text(PLAYED_UV.format(python=sys.executable, wheels=wheels))
        (home / "bin/uv").chmod(0o755)

        install = (python, SOURCE / "tests/python/played_github.py", repository, "extensions", "install", "an-owner/hf-shardctl")
        self.hf(home, *install)
        self.assertTrue((extension / "venv/bin/shardctl").exists())
        self.assertRegex(self.hf(home, hf, "extensions", "list"), "an-owner/hf-shardctl +python 0123456 .*Sharded checkpoint")
        for words in (["--help"], ["inspect", SOURCE / "tests/data/demo/ckpt", "--json"]):
            self.assertEqual(self.hf(home, hf, "shardctl", *words), self.hf(home, PROGRAM, *words))
        self.hf(home, hf, "shardctl", "inspect", "absent", code=3)
        self.hf(home, hf, "extensions", "remove", "shardctl")
        self.assertFalse(extension.exists())

        # A file with the extension's name at the top of the repository would be installed instead of the package.
        (repository / "hf-shardctl").write_text("#!/bin/sh\necho a script\n")
        self.hf(home, *install)
        self.assertEqual(self.hf(home, hf, "shardctl"), "a script\n")

    def test_what_is_removed_leaves_nothing(self) -> None:
        place = self.root / "removed"
        venv.create(place)
        before = sorted(place.rglob("*"))
        pip(place, "install", "--no-index", "--no-deps", self.wheel)
        self.assertNotEqual(sorted(place.rglob("*")), before)
        pip(place, "uninstall", "-y", "shardctl")
        self.assertEqual(sorted(place.rglob("*")), before)


@unittest.skipUnless(os.environ.get("SHARD_BUILD"), "the native module was not built")
class Native(unittest.TestCase):
    """A wheel of a tree with the native module and its libraries."""

    def test_it_reads_a_checkpoint_as_installed(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            subprocess.run(["cmake", "--install", os.environ["SHARD_BUILD"], "--component", "python", "--prefix", folder / "prefix"],
                           check=True, stdout=subprocess.DEVNULL)
            module = next((folder / "prefix").rglob("_native.*.so"))
            for library in os.environ["SHARD_LIBRARIES"].split(":"):
                self.copy_library(Path(library), folder / "tree/lib")
            (folder / "tree/native").mkdir()
            subprocess.run(["cp", module, folder / "tree/native" / module.name], check=True)
            wheel = build(folder / "tree")
            self.assertRegex(wheel.name, r"-(cp312-abi3|cp3(9|10|11)-cp3(9|10|11))-")
            venv.create(folder / "env")
            pip(folder / "env", "install", "--no-index", "--no-deps", wheel)
            script = ("import shardctl, sys\nfound = shardctl.open(sys.argv[1])\nbuffer = bytearray(8)\n"
                      "found.read_into([(found['model.norm.weight'][:4], buffer)])\nprint(found.format, any(buffer))")
            shown = subprocess.run([folder / "env/bin/python", "-c", script, SOURCE / "tests/data/demo/ckpt"], text=True,
                                   env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
                                   stdout=subprocess.PIPE, check=True).stdout
            self.assertEqual(shown, "dcp True\n")

    def copy_library(self, library: Path, folder: Path) -> None:
        """Copies it under the name by which others find it."""
        folder.mkdir(parents=True, exist_ok=True)
        name = subprocess.run(["readelf", "-d", library], check=True, text=True, stdout=subprocess.PIPE).stdout
        name = name.partition("Library soname: [")[2].partition("]")[0]
        (folder / name).write_bytes(library.read_bytes())


class Tags(unittest.TestCase):
    """Uses a given output of readelf."""

    def test_a_native_module_binds_the_wheel_to_its_python(self) -> None:
        self.assertEqual(hatch_build.python_tag([]), "py3-none")
        self.assertEqual(hatch_build.python_tag([Path("_native.abi3.so")]), "cp312-abi3")
        self.assertEqual(hatch_build.python_tag([Path("_native.cpython-311-x86_64-linux-gnu.so")]), "cp311-cp311")
        self.assertEqual(hatch_build.python_tag([Path("_native.cpython-313t-x86_64-linux-gnu.so")]), "cp313-cp313t")
        with self.assertRaises(ValueError):
            hatch_build.python_tag([Path("_native.so")])

    def tag(self, *lines: str) -> str:
        with mock.patch.object(hatch_build, "readelf", return_value="\n".join(lines)):
            return str(hatch_build.platform_tag([Path("bin/shardctl")]))

    def test_the_newest_symbol_of_glibc_decides(self) -> None:
        self.assertEqual(self.tag("Machine: AArch64", " (NEEDED) Shared library: [libc.so.6]", "Name: GLIBC_2.9", "Name: GLIBC_2.28"),
                         "manylinux_2_28_aarch64")
        self.assertEqual(self.tag("Machine: X", " (NEEDED) Shared library: [libc.so.6]", "Name: GLIBC_2.2.5"),
                         "manylinux_2_17_x86_64")

    def test_the_libraries_that_every_system_and_torch_have_bind_it_to_nothing(self) -> None:
        self.assertEqual(self.tag("Machine: X", " (NEEDED) Shared library: [libstdc++.so.6]", " (NEEDED) Shared library: [libtorch_cuda.so]",
                                  "Name: GLIBC_2.34"), "manylinux_2_34_x86_64")

    def test_what_needs_nothing_runs_with_musl_too(self) -> None:
        self.assertEqual(self.tag("Machine: X"), "manylinux_2_17_x86_64.musllinux_1_1_x86_64")

    def test_other_libraries_bind_it_to_the_machine(self) -> None:
        self.assertEqual(self.tag("Machine: X", " (NEEDED) Shared library: [libcrypto.so.3]"), "linux_x86_64")


if __name__ == "__main__":
    unittest.main()
