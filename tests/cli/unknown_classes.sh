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

# A tensor of an unknown subclass is listed, and refused if its elements are needed. No name can exclude the root; if it
# is dropped, the output is empty, and warnings report both.
python3 - <<'P'
import zipfile
tensor = b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\ncmy.project\nSub\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQK\x00K\x02\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtNtR"
with zipfile.ZipFile("subclass.pt", "w") as file:
    for name, content in [("data.pkl", b"\x80\x02" + tensor + b"."), ("byteorder", b"little"), ("data/0", bytes(8)), ("version", b"3\n")]:
        file.writestr("archive/" + name, content)
P
expect 0 inspect subclass.pt
expect 8 digest subclass.pt
expect 8 convert subclass.pt -o none.pt
expect 0 inspect subclass.pt --unknown-globals opaque
holds out "my.project.Sub"
lacks out "_rebuild"
expect 8 convert subclass.pt -o none.pt --unknown-globals opaque
holds err "--objects drop"
expect 0 convert subclass.pt -o none.pt --unknown-globals opaque --objects drop
holds err "the output is empty"
holds err "skipped 1 object with tensors"
