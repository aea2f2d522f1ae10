"""Tests scripts/release, and the files of the repository that belong to releases and contributors: release.py SOURCE_DIR

- `check` names every reason against a publication, and `publish` pushes a tag only if there is none. The remote is a
  folder. `index` describes all files of dist and all libraries inside. `extension` commits the files of `hf shardctl`.
- The workflows, the form for issues and CITATION.cff fit their schemas. The workflows run commands that exist.
- The commands of "Your first change" in CONTRIBUTING.md name a preset, a target and files that exist.

Environment: as ci_examples.py.
"""
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from ci_examples import check, hold_against_schema

SOURCE = Path(sys.argv[1]).resolve()
VERSION = re.search(r"^project\(shardctl VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text(), re.MULTILINE)[1]


def run(command: str, folder: Path) -> subprocess.CompletedProcess:
    user = {f"GIT_{who}_{what}": "test@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return subprocess.run(["bash", "-c", command], cwd=folder, env={**os.environ, **user}, text=True, capture_output=True)


def ok(command: str, folder: Path) -> str:
    done = run(command, folder)
    check(done.returncode == 0, f"{command}: {done.stdout}{done.stderr}")
    return done.stdout


def make_repository(folder: Path) -> None:
    """A repository with the files that scripts/release reads, and a remote."""
    for name in ("scripts/release", "scripts/common.sh", "scripts/packaging/common.sh", "scripts/packaging/sbom.py",
                 "scripts/packaging/sources.txt", "scripts/versions.env", "packaging/debian/packages", "packaging/hf-shardctl/pyproject.toml", "packaging/hf-shardctl/README.md", "CMakeLists.txt", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", ".gitignore"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCE / name, folder / name)
    (folder / "LICENSE").unlink(missing_ok=True)
    for name in ("CHANGELOG.md", "SECURITY.md"):  # The state before a release.
        text = (folder / name).read_text()
        text = re.sub(rf"^## \[{re.escape(VERSION)}\] - .*", f"## [{VERSION}] - unreleased", text, flags=re.MULTILINE)
        (folder / name).write_text(text if name == "CHANGELOG.md" or "The owner replaces" in text else text + "\nThe owner replaces\n")
    ok("git init -q --bare ../remote && git init -q . && git remote add origin ../remote && git add -A && git commit -qm one", folder)


def test_check_and_publish(folder: Path) -> None:
    make_repository(folder)
    (folder / "new").touch()
    (folder / "CITATION.cff").write_text("version: 0.0.1\n")
    done = run("scripts/release publish", folder)
    reasons = done.stderr.splitlines()[1:]
    check(done.returncode == 1 and len(reasons) == 5, f"publish: exit code {done.returncode}, {done.stderr}")
    for word in ("LICENSE", "not committed", "CHANGELOG.md", "CITATION.cff", "SECURITY.md"):
        check(any(word in reason for reason in reasons), f"publish does not name {word}: {done.stderr}")
    check(ok("git tag; git -C ../remote tag", folder) == "", "publish has made a tag in spite of reasons against it")

    shutil.copy(SOURCE / "CITATION.cff", folder)
    (folder / "LICENSE").write_text("a licence\n")
    for name, old, new in (("CHANGELOG.md", " - unreleased", " - 2026-12-01"), ("SECURITY.md", "The owner replaces", "")):
        (folder / name).write_text((folder / name).read_text().replace(old, new))
    ok("git add -A && git commit -qm two && scripts/release check && scripts/release publish && scripts/release publish", folder)
    check(ok("git -C ../remote tag", folder) == f"v{VERSION}\n", "publish has not pushed the tag")
    ok("git commit -q --allow-empty -m three", folder)
    done = run("scripts/release check", folder)
    check(done.returncode == 1 and "is a different commit" in done.stderr, f"check with a moved tag: {done.stderr}")


def test_index(folder: Path) -> None:
    make_repository(folder)
    check(run("scripts/release index", folder).returncode == 1, "index describes an empty folder")
    program = f"shardctl-{VERSION}-linux-x86_64"
    (folder / "dist" / program).write_text("program")
    wheel = f"shardctl-{VERSION}-cp312-abi3-manylinux_2_28_x86_64.whl"
    (folder / "dist" / wheel).write_text("wheel")
    ok("scripts/release index && cp dist/*.spdx.json first && scripts/release index && cmp dist/*.spdx.json first", folder)
    ok("cd dist && sha256sum --check --strict SHA256SUMS && [ $(wc -l <SHA256SUMS) = 3 ]", folder)
    text = json.loads((folder / f"dist/shardctl-{VERSION}.spdx.json").read_text())
    packages = {package["SPDXID"]: package for package in text["packages"]}
    check(len(packages) == len(text["packages"]), "the SPDX document has an identifier twice")
    check(all(re.fullmatch("SPDXRef-[A-Za-z0-9.-]+", name) for name in packages), f"SPDX identifiers: {packages.keys()}")
    described = next(package for package in packages.values() if package["name"] == program)
    check(described["checksums"] == [{"algorithm": "SHA256", "checksumValue": hashlib.sha256(b"program").hexdigest()}], f"SPDX: {described}")

    def inside_of(name: str) -> set[str]:
        file = next(package["SPDXID"] for package in packages.values() if package["name"] == name)
        return {packages[each["relatedSpdxElement"]]["name"] for each in text["relationships"] if each["spdxElementId"] == file}

    inside = inside_of(program)
    libraries = {line.split()[0] for line in (SOURCE / "scripts/packaging/sources.txt").read_text().splitlines() if not line.startswith("#")}
    check(libraries < inside and "libc++" in inside, f"SPDX: the program contains {inside}")
    check(inside_of(wheel) == inside | {"nanobind", "robin-map"}, f"SPDX: the wheel contains {inside_of(wheel)}")
    named = {package["licenseDeclared"] for package in packages.values() if package["name"] not in (program, wheel)}
    check("NOASSERTION" not in named, "SPDX: a library has no licence")
    own = {each["licenseId"] for each in text["hasExtractedLicensingInfos"]}
    check(own == {name for name in named if name.startswith("LicenseRef-")}, f"SPDX: texts of {own}, but licences {named}")


def test_complete(folder: Path) -> None:
    """A release has the files that its script expects; sbom.py knows their libraries."""
    make_repository(folder)
    expected = ok("mkdir dist && scripts/release files", folder).split()
    for name in expected:
        (folder / "dist" / name).touch()
    ok("scripts/release complete", folder)
    missing = next(name for name in expected if "cp313t" in name)
    (folder / "dist" / missing).rename(folder / "dist/old.whl")
    done = run("scripts/release complete", folder)
    check(done.returncode == 1 and f"lacks {missing}" in done.stderr and "has also old.whl" in done.stderr, f"complete: {done.stderr}")
    (folder / "dist/old.whl").unlink()
    ok("scripts/release index", folder)
    text = json.loads((folder / f"dist/shardctl-{VERSION}.spdx.json").read_text())
    containers = {each["spdxElementId"] for each in text["relationships"] if each["relationshipType"] == "CONTAINS"}
    plain = {package["name"] for package in text["packages"] if package["SPDXID"].startswith("SPDXRef-File-") and package["SPDXID"] not in containers}
    check(plain == {f"shardctl-{VERSION}-licences.txt", f"libshard-dev_{VERSION}-1_amd64.deb"}, f"SPDX: no libraries in {plain}")


def test_extension(folder: Path) -> None:
    make_repository(folder)
    check(run("scripts/release extension ../clone", folder).returncode == 1, "extension takes a folder that is not a clone")
    ok("git clone -q ../remote ../clone", folder)
    done = run("scripts/release extension ../clone", folder)
    check(done.returncode == 1 and "LICENSE" in done.stderr, f"extension without a LICENSE: {done.stderr}")
    ok("echo a licence >LICENSE && git add LICENSE && git commit -qm two && scripts/release extension ../clone", folder)
    check(ok("git -C ../clone show --format=%s --name-only", folder).split() ==
          ["shardctl", VERSION, "LICENSE", "README.md", "pyproject.toml"], "extension has not committed its files")
    ok("scripts/release extension ../clone && [ $(git -C ../clone rev-list --count HEAD) = 1 ] && touch ../clone/new", folder)
    check("not committed" in run("scripts/release extension ../clone", folder).stderr, "extension commits files of the user")


def test_workflows() -> None:
    hold_against_schema(SOURCE / ".github/workflows/release.yml", "vendor.github-workflows")
    hold_against_schema(SOURCE / ".gitlab-ci.yml", "vendor.gitlab-ci")
    jobs = yaml.safe_load((SOURCE / ".github/workflows/release.yml").read_text())["jobs"]
    github = {name: [step.get("run", step.get("uses")) for step in job["steps"]] for name, job in jobs.items()}
    check(jobs["pypi"]["permissions"] == {"id-token": "write"}, "release.yml: trusted publishing needs only id-token")
    gitlab = {name: job["script"] for name, job in yaml.safe_load((SOURCE / ".gitlab-ci.yml").read_text()).items() if "script" in job}
    for name, steps in (("release.yml", github), (".gitlab-ci.yml", gitlab)):
        built = [step for step in steps["build"] if step.startswith("scripts/")]
        check(built == ["scripts/release check", "scripts/release build"], f"{name}: {built}")
        check(steps.keys() == {"build", "files", "pypi", "container"}, f"{name}: jobs {steps.keys()}")
        files = re.findall(r"build -f (\S+)", "\n".join(steps["container"]))
        check(files == ["packaging/Containerfile"] and (SOURCE / files[0]).exists(), f"{name}: container from {files}")
        for step in (step for each in steps.values() for step in each):
            check("@" in step.split()[0] or run(f"bash -nc {shlex.quote(step)}", SOURCE).returncode == 0, f"{name}: {step}")


def test_files_for_contributors() -> None:
    hold_against_schema(SOURCE / ".github/ISSUE_TEMPLATE/bug.yml", "vendor.github-issue-forms")
    hold_against_schema(SOURCE / "CITATION.cff", "vendor.citation-file-format")
    check(yaml.safe_load((SOURCE / "CITATION.cff").read_text())["version"] == VERSION, "CITATION.cff: version")
    section = (SOURCE / "CONTRIBUTING.md").read_text().split("## Your first change\n")[1].split("\n## ")[0]
    target = re.search(r"ninja -C build/dev (\w+)", section)[1]
    check(f"(shard_test({target}\n"[1:] in (SOURCE / "tests/formats/safetensors.cmake").read_text(), f"there is no test {target}")
    check(f"-R '^{target}$'" in section, "the first change builds one test and runs a different one")
    presets = json.loads((SOURCE / "CMakePresets.json").read_text())["configurePresets"]
    check(re.search(r"--preset (\w+)", section)[1] in {preset["name"] for preset in presets}, "there is no such preset")
    for name in re.findall(r"`((?:tests|scripts)/[\w./]+)", section):
        check((SOURCE / name).exists(), f"CONTRIBUTING.md: there is no {name}")
    check("no licence: only the repository's owner can choose one" in (SOURCE / "README.md").read_text() or (SOURCE / "LICENSE").exists(),
          "the README does not name the missing licence")


with tempfile.TemporaryDirectory() as root:
    for test in (test_check_and_publish, test_index, test_complete, test_extension):
        (Path(root) / test.__name__ / "work").mkdir(parents=True)
        test(Path(root) / test.__name__ / "work")
test_workflows()
test_files_for_contributors()
