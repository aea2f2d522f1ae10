#!/usr/bin/env bash
# A class that is not on the list is refused by name; --unknown-globals opaque shows it, runs nothing, and writers need
# --objects drop.
. "$(dirname "$0")/common.sh"
python3 - <<'P'
import io, pickle, zipfile
class Config:
    pass
Config.__module__, Config.__qualname__ = "my.project", "Config"
data = b"\x80\x02}q\x00(X\x06\x00\x00\x00configq\x01cmy.project\nConfig\nq\x02)\x81q\x03}q\x04X\x01\x00\x00\x00aq\x05K\x01sbX\x04\x00\x00\x00stepq\x06K\x07u."
with zipfile.ZipFile("config.pt", "w") as file:
    for name, content in [("data.pkl", data), ("byteorder", b"little"), ("version", b"3\n")]:
        file.writestr("archive/" + name, content)
P
expect 4 inspect config.pt
holds err "my.project.Config"
expect 0 inspect config.pt --unknown-globals opaque --json
python3 - <<'P' || fail "the document"
import json
objects = {each["name"]: each for each in json.load(open("out"))["objects"]}
assert objects["config"]["value"] is None and "my.project.Config" in objects["config"]["summary"], objects
assert objects["step"]["value"] == 7
P
expect 8 convert config.pt -o again.pt --unknown-globals opaque
holds err "--objects drop"
[ ! -e again.pt ] || fail "a refusal wrote something"
expect 8 diff config.pt config.pt --unknown-globals opaque
expect 0 convert config.pt -o again.pt --unknown-globals opaque --objects drop
SHARDCTL_UNKNOWN_GLOBALS=opaque expect 0 inspect config.pt
