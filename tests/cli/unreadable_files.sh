#!/usr/bin/env bash
# A file without read permission is exit code 3 and named on every verb, including verify: it is neither missing nor
# damaged.
. "$(dirname "$0")/common.sh"
model m.safetensors 4096
expect 0 split m.safetensors -o dcp --ranks 2
expect 0 split m.safetensors -o ranks --ranks 2 --to torch-ranks
expect 0 split m.safetensors -o parts --shards 2
chmod -R a+rX "$work"
if ! setpriv --reuid 65534 --clear-groups "$SHARDCTL" version >/dev/null 2>&1; then
  echo "SKIPPED: cannot run as another user"
  exit 77
fi
for file in dcp/__1_0.distcp dcp/.metadata ranks/rank-00001-of-00002.pt parts/model-00002-of-00002.safetensors; do
  chmod 000 "$file"
  for verb in verify "gather -o x" "digest" "inspect --json"; do
    code=0
    setpriv --reuid 65534 --clear-groups "$SHARDCTL" ${verb%% *} "${file%%/*}" $([ "${verb#* }" = "$verb" ] || echo "${verb#* }") \
      >out 2>err || code=$?
    [ "$code" = 3 ] || fail "$verb of $file: exit $code, not 3"
    holds err "${file##*/}: "
    holds err "cannot open: Permission denied"
    lacks out missing_file
  done
  chmod a+r "$file"
done

# Repair saves the content of the other files.
expect 0 split m.safetensors -o whole --shards 2 --to dcp
chmod -R a+rX whole
chmod 000 whole/__1_0.distcp
mkdir -m 777 theirs
setpriv --reuid 65534 --clear-groups "$SHARDCTL" repair whole -o theirs/rest --json >out 2>err || fail "repair: exit $?"
holds out "cannot open: Permission denied"
[ "$(jq '.tensors > 0 and (.lost | length) > 0' out)" = true ] || fail "not the tensors of one file"

# The same of a folder that we may not write to is exit 6, and of the destination as it was named.
mkdir mine
chmod 755 mine
code=0
setpriv --reuid 65534 --clear-groups "$SHARDCTL" gather dcp -o mine/x.pt >out 2>err || code=$?
[ "$code" = 6 ] || fail "gather to another's folder: exit $code, not 6"
holds err "mine/x.pt: cannot create the folder: Permission denied"
