"""Facts about the project in packaging/ match the project. The recipes are not built here. Environment: SHARDCTL is the
program of a build tree."""
import json
import platform
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
PACKAGING = SOURCE / "packaging"
# Debian's packages that a build needs, by their names in conda-forge.
CONDA = {
    "libcli11-dev": "cli11", "libfmt-dev": "fmt", "libisal-dev": "isa-l", "libre2-dev": "re2", "libsimdjson-dev": "simdjson",
    "libspdlog-dev": "spdlog", "libssl-dev": "openssl", "libxxhash-dev": "libxxhash", "libyaml-dev": "yaml", "libzstd-dev": "zstd",
    "nlohmann-json3-dev": "nlohmann_json", "zlib1g-dev": "zlib",
}  # fmt: skip
OF_TESTS = {"libgtest-dev", "libgmock-dev"}
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def text(path: str) -> str:
    return (SOURCE / path).read_text()


def words(pattern: str, path: str) -> list[str]:
    return re.findall(pattern, text(path), re.MULTILINE)


class Recipes(unittest.TestCase):
    def test_versions_are_the_project_s(self) -> None:
        version = words(r"^project\(shardctl VERSION ([0-9.]+)", "CMakeLists.txt")[0]
        self.assertEqual(words(r'^  version: "(.*)"', "packaging/conda/recipe.yaml"), [version])
        self.assertEqual(words(r'^version = "(.*)"', "packaging/hf-shardctl/pyproject.toml"), [version])
        self.assertEqual(words(r'"shardctl==(.*)"', "packaging/hf-shardctl/pyproject.toml"), [version])
        self.assertEqual(words(r"^ARG VERSION=(.*)", "packaging/Containerfile"), [version])

    def test_conda_has_every_library_that_a_build_needs(self) -> None:
        packages = re.search(r"core_packages=\((.*?)\)", text("scripts/setup"), re.DOTALL)
        assert packages is not None
        needed = {name for name in packages[1].split() if name.endswith("-dev")} - OF_TESTS
        host = text("packaging/conda/recipe.yaml").split("      host:\n")[1].split("    tests:")[0]
        self.assertEqual(sorted(CONDA[name] for name in needed), re.findall(r"- (\S+)", host))

    def test_every_component_has_one_debian_package(self) -> None:
        files = [*SOURCE.glob("cmake/*.cmake"), *SOURCE.glob("formats/**/CMakeLists.txt"), *SOURCE.glob("libshard/**/CMakeLists.txt")]
        installed = {name for file in files for name in re.findall(r"COMPONENT (\w+)", file.read_text())}
        self.assertEqual(sorted(words(r"^X-Component: (\w+)", "packaging/debian/packages")), sorted(installed))
        for file in files:  # An install rule without a component would be in no package.
            for rule in re.findall(r"^ *install\(((?:[^()]|\([^()]*\))*)\)", file.read_text(), re.MULTILINE):
                self.assertIn("COMPONENT", rule, f"{file.name}: install({rule})")

    def test_the_extension_is_named_as_hf_wants_it(self) -> None:
        project = text("packaging/hf-shardctl/pyproject.toml")
        self.assertIn('\nname = "hf-shardctl"\n', project)
        self.assertIn('\nhf-shardctl = "shardctl.__main__:main"\n', project)
        self.assertFalse((PACKAGING / "hf-shardctl/hf-shardctl").exists(), "hf would install this file instead of the package")

    def test_container_files_take_what_the_scripts_make(self) -> None:
        made = re.compile(r"dist/(shardctl-\$\{VERSION\}-(linux-\*|plugins-linux-\*\.tar\.gz|licences\.txt)|(libshard[0-9.]+|shardctl)_\*\.deb)")
        for file in sorted(PACKAGING.glob("Containerfile*")):
            lines = re.sub(r"\\\n", " ", file.read_text()).splitlines()
            steps = [line.split() for line in lines if line and not line.startswith("#")]
            self.assertEqual((steps[0][0], steps[-1][0]), ("FROM", "ENTRYPOINT"))
            self.assertLessEqual({step[0] for step in steps}, {"FROM", "ARG", "COPY", "RUN", "WORKDIR", "ENTRYPOINT"})
            self.assertIsInstance(json.loads(" ".join(steps[-1][1:])), list)  # Without a shell, which an empty image lacks.
            stages = [step[3] for step in steps if step[0] == "FROM" and step[2:3] == ["AS"]]
            for step in (step for step in steps if step[0] == "COPY"):
                options = [word for word in step if word.startswith("--")]
                self.assertLessEqual(set(options), {f"--from={stage}" for stage in stages})
                for source in step[1:-1] if not options else []:
                    self.assertTrue(made.fullmatch(source) or (SOURCE / source).is_file(), f"{file.name}: COPY {source}")
        for name in words(r"dist/(\w+)_\*\.deb", "packaging/Containerfile.plugins"):
            self.assertIn(name, words(r"^Package: (.*)", "packaging/debian/packages"))

    def test_the_container_image_is_made_as_its_script_expects(self) -> None:
        script, file = text("scripts/packaging/image_root"), text("packaging/Containerfile")
        self.assertIn("RUN /image_root /dist /sources.txt /image\n", file)
        self.assertIn('install -m 755 "$program" "$image/shardctl"', script)
        self.assertIn('ENTRYPOINT ["/shardctl"]', file)
        self.assertIn(" ca-certificates", re.search("apt-get install (.*)", file)[1])

    @unittest.skipUnless(CERTIFICATES.exists() and shutil.which("dpkg"), "needs Debian and its certificates")
    def test_the_root_of_the_container_image_is_complete(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            dist, image, machine = Path(name, "dist"), Path(name, "image"), platform.machine()
            dist.mkdir()
            shutil.copy("/usr/bin/env", dist / f"shardctl-1-linux-{machine}")  # A program that runs without arguments.
            (dist / "shardctl-1-licences.txt").touch()
            subprocess.run([SOURCE / "scripts/packaging/image_root", dist, SOURCE / "scripts/packaging/sources.txt", image], check=True)
            self.assertEqual((image / CERTIFICATES.relative_to("/")).read_bytes(), CERTIFICATES.read_bytes())
            self.assertTrue((image / "usr/share/doc/libc6/copyright").exists())
            loader = next(image.glob("lib*/ld-linux-*.so.*"))
            command = [loader, "--inhibit-cache", "--library-path", image / f"lib/{machine}-linux-gnu", "--list", image / "shardctl"]
            found = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
            for library in re.findall(r"=> (\S+)", found):
                self.assertTrue(library.startswith(str(image)), f"the program takes {library} from elsewhere")
            documents = image / "usr/share/doc/shardctl/image.spdx"
            self.assertIn("PackageName: openssl\n", documents.read_text())


if __name__ == "__main__":
    unittest.main()
