"""Runs the files of scripts/examples for CI systems, on small checkpoints of which one is damaged: ci_examples.py
SOURCE_DIR

GitHub's and GitLab's files are compared with those systems' schemas if check-jsonschema is installed; their
commands run as the systems run them. Slurm is a fake that runs jobs at once. Kubernetes' mounts are folders of the
test.

Environment: SHARDCTL is the program, SHARD_DATA the folder tests/data.
"""
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

EXAMPLES = Path(sys.argv[1]).resolve() / "scripts/examples"
DATA = Path(os.environ["SHARD_DATA"])
DAMAGED = "checkpoint-2\x1b[31m\n- `x`: <b>forged\n\n# \x9b\u202e"  # A name that a log or Markdown must not obey.

SBATCH = r"""#!/usr/bin/env bash
# A fake: runs the jobs, keeps their reports, prints a number for the array.
echo "$*" >>submitted
tasks=0
while [[ $1 == --* ]]; do
  [[ $1 != --array=0-* ]] || tasks=${1#--array=0-}
  shift
done
for task in $(seq 0 $tasks); do bash "$@" >report.$task 2>/dev/null & done
wait
echo "$((17 + $(wc -l <submitted)));cluster"
"""


def make_folder(root: Path) -> dict[str, str]:
    """Two good checkpoints and a damaged one; the environment of a runner that has shardctl."""
    (root / "checkpoints").mkdir(parents=True)
    for name in ("checkpoint-1", DAMAGED, "checkpoint-3"):
        shutil.copytree(DATA / "demo/ckpt", root / "checkpoints" / name)
    os.truncate(root / "checkpoints" / DAMAGED / "__2_0.distcp", 9000)
    (root / "bin").mkdir()
    (root / "bin/shardctl").symlink_to(Path(os.environ["SHARDCTL"]).resolve())
    (root / "ci").mkdir()
    (root / "ci/nightly").symlink_to(EXAMPLES / "nightly")
    kept = {name: value for name, value in os.environ.items() if not re.match(r"SHARDCTL|NIGHTLY_|SLURM_", name)}
    return {**kept, "PATH": f"{root / 'bin'}:{os.environ['PATH']}", "NIGHTLY_MINUTES": "0"}


def run(command: list[str], root: Path, environment: dict[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=root, env=environment, text=True, capture_output=True)


def check(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"FAIL: {what}")


def check_plain(text: str, who: str) -> None:
    check(re.fullmatch("[ -~\n]*", text) is not None, f"{who}: a name's control characters are printed: {text!a}")


def check_report(text: str, who: str, done: str = "exported") -> None:
    check_plain(text, who)
    lines = [json.loads(line) for line in text.splitlines()]
    states = [line.get("state") for line in lines]
    check(states == [done, "failed", done, None], f"{who}: the report has {states}")


def hold_against_schema(path: Path, schema: str) -> None:
    if importlib.util.find_spec("check_jsonschema") is None:
        print(f"{path} is not held against its schema: there is no check-jsonschema")
        return
    from check_jsonschema import main

    check(not main(["--builtin-schema", schema, str(path)], standalone_mode=False), f"{path} does not fit {schema}")


def paths_in(variables: dict[str, str], root: Path) -> dict[str, str]:
    """The folders of an example, below `root`."""
    return {name: str(root) + value if value.startswith("/") else value for name, value in variables.items()}


def test_github(root: Path) -> None:
    hold_against_schema(EXAMPLES / "github.yml", "vendor.github-workflows")
    job = yaml.safe_load((EXAMPLES / "github.yml").read_text())["jobs"]["export"]
    environment = {**make_folder(root), **paths_in(job["env"], root), "GITHUB_STEP_SUMMARY": str(root / "summary.md")}
    steps = [step for step in job["steps"] if "run" in step]
    codes = []
    for step in steps:
        check(step["shell"] == "bash", "github.yml: a step without 'shell: bash' has no pipefail")
        codes.append(run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]], root, environment).returncode)
    check(codes == [1, 0], f"github.yml: the steps' exit codes are {codes}")
    check(all(step.get("if") == "always()" for step in job["steps"][2:]), "github.yml: the report is lost after a failure")
    check_report((root / "report.jsonl").read_text(), "github.yml")
    summary = (root / "summary.md").read_text()
    check_plain(summary, "github.yml")
    before, *rows, after = summary.split("\n")
    check(before == after == "" and len(rows) == 1 and rows[0].startswith("    ["), f"github.yml: not a block of code: {summary}")
    check(json.loads(rows[0])[0] == DAMAGED, "github.yml: the summary names no failure")


def test_gitlab(root: Path) -> None:
    hold_against_schema(EXAMPLES / "gitlab.yml", "vendor.gitlab-ci")
    job = yaml.safe_load((EXAMPLES / "gitlab.yml").read_text())["export"]
    environment = {**make_folder(root), **paths_in(job["variables"], root)}
    done = run(["bash", "-eo", "pipefail", "-c", "\n".join(job["script"])], root, environment)
    check(done.returncode == 1, f"gitlab.yml: exit code {done.returncode}")
    check_report((root / "report.jsonl").read_text(), "gitlab.yml")
    after = run(["bash", "-eo", "pipefail", "-c", "\n".join(job["after_script"])], root, environment)
    check_plain(after.stdout, "gitlab.yml")
    check(json.loads(after.stdout)[0] == DAMAGED, f"gitlab.yml: {after.stdout}{after.stderr}")
    check(job["artifacts"]["paths"] == ["report.jsonl"] and job["artifacts"]["when"] == "always", "gitlab.yml: artifacts")


def test_slurm(root: Path) -> None:
    check(run(["bash", "-n", EXAMPLES / "slurm.sbatch"], EXAMPLES, os.environ).returncode == 0, "slurm.sbatch: bash -n")
    lines = (EXAMPLES / "slurm.sbatch").read_text().splitlines()
    directives = [line for line in lines if line.startswith("#SBATCH")]
    check(lines[1:1 + len(directives)] == directives, "slurm.sbatch: directives must stand before everything else")
    check(all(re.fullmatch(r"#SBATCH --[a-z-]+=\S+", line) for line in directives), "slurm.sbatch: directives")
    environment = make_folder(root)
    (root / "bin/sbatch").write_text(SBATCH)
    (root / "bin/sbatch").chmod(0o755)
    done = run([EXAMPLES / "slurm_submit", "12", root / "ci/nightly", root / "checkpoints", root / "exports"], root, environment)
    check(done.returncode == 0, f"slurm_submit: {done.stderr}")
    submitted = (root / "submitted").read_text().splitlines()
    check("--dependency=afterany:12 --array=0-3" in submitted[0], f"slurm_submit: {submitted[0]}")
    check("--dependency=afterany:18 " in submitted[1], f"slurm_submit: {submitted[1]}")
    check_report((root / "report.0").read_text(), "slurm_submit, the last job", "unchanged")


def test_kubernetes(root: Path) -> None:
    document = yaml.safe_load((EXAMPLES / "kubernetes.yml").read_text())
    check((document["apiVersion"], document["kind"]) == ("batch/v1", "CronJob"), "kubernetes.yml: kind")
    pod = document["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    check(pod["restartPolicy"] in ("Never", "OnFailure"), "kubernetes.yml: a Job's pods may not restart always")
    [container] = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    check({mount["name"] for mount in container["volumeMounts"]} == volumes.keys(), "kubernetes.yml: volumes and mounts")
    check(volumes["ci"]["configMap"]["defaultMode"] & 0o111 == 0o111, "kubernetes.yml: the script cannot be executed")
    environment = {**make_folder(root), **paths_in({each["name"]: each["value"] for each in container["env"]}, root)}
    for mount in container["volumeMounts"]:
        (root / mount["mountPath"].removeprefix("/")).mkdir(exist_ok=True)
    done = run([str(root) + word for word in container["command"]], root, environment)
    check(done.returncode == 1, f"kubernetes.yml: exit code {done.returncode}: {done.stderr}")
    check_report(done.stdout, "kubernetes.yml")
    check(list((root / "scratch").iterdir()) == [], "kubernetes.yml: something stayed in TMPDIR")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for test in (test_github, test_gitlab, test_slurm, test_kubernetes):
            test(Path(folder) / test.__name__)
