#!/usr/bin/env bash
# inspect shows the values of objects if reading them costs at most 1 MiB, and otherwise reads only metadata.
. "$(dirname "$0")/common.sh"
make_objects() {
  python3 - "$1" "$2" <<'P'
import pickle, sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as file:
    content = pickle.dumps({"step": 7, "text": "t" * int(sys.argv[2])}, protocol=2)
    for name, data in [("data.pkl", content), ("byteorder", b"little"), ("version", b"3\n")]:
        file.writestr("archive/" + name, data)
P
}
make_objects small.pt 100
make_objects large.pt 2000000
for size in small large; do expect 0 convert $size.pt -o $size --to dcp; done

expect 0 inspect small
holds out "step	int	7"
holds out "text	str	'tttt"
expect 0 inspect large
holds out "step	object	(not read; --json shows its value)"
expect 0 inspect large --json
holds out '"value": 7'
expect 0 inspect large.pt
holds out "step	int	7"
expect 0 cat large.pt text --format raw
[ "$(wc -c <out)" = 2000000 ] || fail "not the bytes of the string"
expect 2 cat large.pt step --format raw

# A value that cannot be read does not keep inspect from showing the rest.
for item in small/*.distcp; do head -c "$(stat -c %s "$item")" /dev/zero >zeros && mv zeros "$item"; done
expect 0 inspect small
holds err "warning: cannot read the values of objects"
holds out "(not read"
expect 4 inspect small --json
