#!/usr/bin/env bash
# An unused option on the command line is refused; in the environment it may be for other runs.
. "$(dirname "$0")/common.sh"
model m.safetensors 4096
for verb in inspect digest "gather -o x" "split -o x --ranks 2" "cat w[0:1,0:1]" "diff m.safetensors"; do
  rest=$([ "${verb#* }" = "$verb" ] || echo "${verb#* }")
  for option in "--set heads=2" "--hf-ref nowhere" "--weights 16bit"; do
    expect 2 ${verb%% *} m.safetensors $rest $option
    grep -qE "error: ${option%% *} (needs a model map|applies only to DeepSpeed)" "$work/err" || fail "$verb $option: $(cat "$work/err")"
    [ ! -e x ] || fail "$verb $option wrote x"
  done
  SHARDCTL_SET=heads=2 SHARDCTL_HF_REF=nowhere SHARDCTL_WEIGHTS=16bit expect 0 ${verb%% *} m.safetensors $rest
  rm -rf x
done
expect 2 export m.safetensors -o x --set heads=2
holds err "error: --set needs a model map"

# The verbs that use them accept them; in diff one side is enough.
save="$SHARD_DATA/deepspeed/stage2_tied"
expect 0 gather "$save" -o module.safetensors --weights 16bit --exclude 'optimizer.**' --objects drop
expect 0 diff "$save" module.safetensors --weights 16bit --exclude 'optimizer.**' --objects drop
