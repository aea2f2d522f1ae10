#!/usr/bin/env bash
# A file outside the index is refused if it is a part of the same checkpoint; otherwise every verb names it.
. "$(dirname "$0")/common.sh"
index() { printf '{"weight_map": {%s}}' "$1" >d/model.safetensors.index.json; }

# entry FILE NAME: a file with one tensor of two bytes.
entry() {
  local header='{"'$2'":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'
  { little_endian ${#header} && printf %s "$header" && printf xy; } >"$1"
}
mkdir d
entry d/model-00001-of-00002.safetensors a
entry d/model-00002-of-00002.safetensors b

for map in "" '"a": "model-00001-of-00002.safetensors"'; do
  index "$map"
  for verb in inspect digest "gather -o x" "export -o x" "split --shards 2 -o x" "diff d" "convert --to dcp -o x"; do
    expect 4 ${verb%% *} d $([ "${verb#* }" = "$verb" ] || echo "${verb#* }")
    holds err model.safetensors.index.json
    holds err model-00002-of-00002.safetensors
    [ ! -e x ] || fail "$verb wrote x"
  done
  expect 4 cat d 'a[0:1]'
  "$SHARDCTL" verify d >out 2>err && fail "verify of an index that lacks a part: exit 0"
  holds out "error index_mismatch"
  expect 0 repair d -o whole -f
  expect 0 digest whole
  holds out "  a" && holds out "  b"
done

# A file of a different name may belong to another program: a note on every verb, and in diff with the name of its
# source.
index '"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"'
entry d/consolidated.safetensors c
for verb in inspect digest "gather -o x -f" "diff d" "export -o x -f" "cat a --format raw"; do
  expect 0 ${verb%% *} d $([ "${verb#* }" = "$verb" ] || echo "${verb#* }")
  holds err "skipped files that the index does not list: 'consolidated.safetensors'"
done
expect 0 verify d
holds out "warning extra_file consolidated.safetensors"
expect 0 digest d -q
is_empty err

# transformers prefers the single file that has the index's name.
entry d/model.safetensors c
expect 0 gather d -o x -f
holds err "transformers reads model.safetensors instead of the files in model.safetensors.index.json"
expect 0 verify d
holds out "warning extra_file model.safetensors: the index does not name this file: transformers reads it instead"
rm d/model.safetensors

# Many other files are one warning.
touch d/{a,b,c,d,e,f,g}.txt
expect 0 gather d -o x -f
[ "$(grep -c "other files of the folder" err)" = 1 ] || fail "several warnings of other files"
