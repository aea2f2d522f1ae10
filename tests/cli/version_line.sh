#!/usr/bin/env bash
# --version is one line; version and env print more, also as JSON.
. "$(dirname "$0")/common.sh"

expect 0 --version
grep -qxE 'shardctl [0-9]+\.[0-9]+\.[0-9]+' out && [ "$(wc -l <out)" = 1 ] || fail "not one line"
expect 0 version
holds out "formats"
for verb in version env; do
  expect 0 $verb --json
  python3 -m json.tool <out >/dev/null || fail "$verb: no JSON"
done
expect 0 version --json
mv out document
for line in "--version --json" "--json --version" "inspect --version --json"; do
  expect 0 $line
  cmp -s out document || fail "$line prints something else than version --json"
done
