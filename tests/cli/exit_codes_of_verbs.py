#!/usr/bin/env python3
"""The table of exit codes in the help of each verb is true: for each code in it there is a command that ends with
it, and no command here ends with a code that is not listed. Not run: 70, signals (signals.sh), and 7 if no plug-in
joins processes."""
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

SHARDCTL = os.environ["SHARDCTL"]
NOT_RUN = {70, 129, 130, 143}
READS = {3: "absent", 4: "notes.txt", 8: "x.gguf"}  # Sources that every verb refuses.
LAUNCHED = ("inspect", "split", "gather", "reshard", "convert", "export", "average", "verify", "diff", "digest", "cat")

# Verb: code: arguments. A bare source is taken for codes 3, 4 and 8; @full has a full disk as its standard output.
WRITERS = {
    "split": "{} -o new --ranks 2", "gather": "{} -o new.pt", "reshard": "{} -o new --ranks 2 --to dcp", "convert": "{} -o new --to dcp",
    "export": "{} -o new", "average": "{} m.safetensors -o new.pt", "repair": "{} -o new.safetensors",
}
CASES = {verb: {code: call.format(source) for code, source in READS.items()}
         | {0: call.format("m.safetensors"), 2: call.format("m.safetensors") + " --nonsense",
            5: call.format("m.safetensors").replace("-o new", "-o there"),
            6: call.format("m.safetensors").replace("-o new", "-o absent/folder/new")}
         for verb, call in WRITERS.items()}
SHOWS = {"inspect": "{}", "verify": "{}", "diff": "{} m.safetensors"}
CASES |= {verb: {code: call.format(source) for code, source in READS.items()}
          | {0: call.format("m.safetensors"), 2: call.format("m.safetensors") + " --nonsense",
             5: call.format("m.safetensors") + " --html there", 6: "@full " + call.format("m.safetensors")}
          for verb, call in SHOWS.items()}
CASES["verify"][1] = "cut.safetensors"
CASES["diff"] |= {1: "other.safetensors m.safetensors", 6: "@full other.safetensors m.safetensors"}
CASES["digest"] = READS | {0: "m.safetensors", 2: "", 5: "m.safetensors --log-file m.safetensors", 6: "@full m.safetensors"}
CASES["cat"] = {code: f"{source} w" for code, source in READS.items()} | {
    0: "m.safetensors w", 2: "", 5: "m.safetensors w --log-file m.safetensors", 6: "@full m.safetensors w"}
CASES["map"] = {code: f"check hf-v5 {source}" for code, source in READS.items()} | {
    0: "list", 1: "check unmatched.json m.safetensors", 2: "check", 5: "check hf-v5 m.safetensors --log-file m.safetensors", 6: "@full list"}
CASES["env"] = {0: "", 2: "nonsense", 3: "--config absent", 5: "--config options.toml --log-file options.toml", 6: "@full"}
CASES["version"] = CASES["env"]
CASES["completion"] = {
    0: "bash", 2: "nonsense", 3: "bash --config absent", 5: "bash --config options.toml --log-file options.toml", 6: "@full bash"}
CASES["help"] = {0: "", 2: "nonsense", 6: "@full"}


def run(verb: str, arguments: str, **environment: str) -> int:
    words = arguments.split()
    full = words[:1] == ["@full"]
    with open("/dev/full" if full else os.devnull, "w") as out:
        return subprocess.run([SHARDCTL, verb, *words[full:]], stdout=out, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                              env=os.environ | environment).returncode


def listed(verb: str) -> set:
    text = subprocess.run([SHARDCTL, "help", verb], check=True, capture_output=True, text=True).stdout
    return {int(code) for code in re.findall(r"^  (\d+) ", text[text.index("Exit codes:"):], re.M)}


def write_model(path: str, letter: bytes) -> None:
    header = b'{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}'
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + letter * 8)


class ExitCodes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        os.chdir(cls.folder.name)
        for name in [name for name in os.environ if name.startswith("SHARDCTL_")]:
            del os.environ[name]

    def setUp(self):
        subprocess.run("rm -rf *", shell=True, check=True)
        write_model("m.safetensors", b"a")
        write_model("other.safetensors", b"b")
        with open("m.safetensors", "rb") as whole, open("cut.safetensors", "wb") as cut:
            cut.write(whole.read()[:-1])
        with open("x.gguf", "wb") as file:
            file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
        with open("notes.txt", "w") as file:
            file.write("text\n")
        with open("options.toml", "w") as file:
            file.write("quiet = true\n")
        with open("unmatched.json", "w") as file:
            json.dump({"schema": "shardctl.layout/1", "name": "none", "rules": [{"id": "none", "logical": "x", "stored": "x", "optional": True}]}, file)
        for name in ("there", "there.pt", "there.safetensors"):
            os.mkdir(name)

    def test_each_verb_is_listed(self):
        text = subprocess.run([SHARDCTL, "help"], check=True, capture_output=True, text=True).stdout
        verbs = re.findall(r"^  ([a-z]+) ", text[text.index("Verbs:"):text.index("\n\n", text.index("Verbs:"))], re.M)
        self.assertEqual(sorted(verbs), sorted(CASES))

    def test_each_listed_code_is_reached_and_no_other(self):
        for verb, cases in CASES.items():
            seven = {7} if verb in LAUNCHED else set()
            self.assertEqual(listed(verb) - NOT_RUN, set(cases) | seven, verb)
            for code, arguments in cases.items():
                with self.subTest(f"{verb} {arguments}"):
                    self.setUp()
                    self.assertEqual(run(verb, arguments), code)

    def test_a_rank_whose_peers_do_not_come_is_seven(self):
        env = json.loads(subprocess.run([SHARDCTL, "env", "--json"], check=True, capture_output=True).stdout)
        if "gloo" not in env["plugins"]:
            self.skipTest("no plug-in joins processes")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        peers = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        for verb in LAUNCHED:
            with self.subTest(verb):
                self.assertEqual(run(verb, CASES[verb][0] + " --timeout 1", **peers), 7)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
