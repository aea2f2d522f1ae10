"""Runs shardctl against a test server, with a clean environment."""
import os
import pathlib
import subprocess
import sys
import time

import server

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import safetensors_files  # noqa: E402, F401

SHARDCTL = os.environ["SHARDCTL"]
DATA = pathlib.Path(os.environ["SHARD_DATA"])


class Client:
    def __init__(self, served, work):
        self.served, self.work = served, pathlib.Path(work)
        self.variables = {"AWS_ACCESS_KEY_ID": server.KEY_ID, "AWS_SECRET_ACCESS_KEY": server.SECRET,
                          "AWS_ENDPOINT_URL": served.url, "HF_ENDPOINT": served.url, "AWS_EC2_METADATA_DISABLED": "true"}

    def run(self, *arguments, **changes):
        """The finished process. `changes` are variables; None removes one."""
        variables = {**self.variables, **{name: value for name, value in changes.items() if value is not None}}
        for name in (name for name, value in changes.items() if value is None):
            variables.pop(name, None)
        begin = time.monotonic()
        done = subprocess.run([SHARDCTL, *map(str, arguments)], capture_output=True, text=True, cwd=self.work,
                              env={"PATH": os.environ["PATH"], "HOME": str(self.work), "LC_ALL": "C", **variables})
        done.seconds = time.monotonic() - begin
        assert server.SECRET not in done.stdout + done.stderr and server.TOKEN not in done.stdout + done.stderr, done
        return done

    def expect(self, code, *arguments, holds=(), **changes):
        done = self.run(*arguments, **changes)
        shown = f"{arguments}: exit {done.returncode}, not {code}\n{done.stdout}{done.stderr}\n{self.served.log[-12:]}"
        assert done.returncode == code, shown
        for words in [holds] if isinstance(holds, str) else holds:
            assert words in done.stdout + done.stderr, f"no {words!r} in\n{shown}"
        return done
