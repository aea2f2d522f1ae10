#!/usr/bin/env bash
# The example shards a module over 4 processes, saves it, and loads it on 2 and on 1; the guides' programs run on 3 and 4:
# example_under_launchers.sh EXAMPLE GUIDE DTENSOR_GUIDE mpirun|torchrun PYTHON
set -u
example=$1 guide=$2 dtensor_guide=$3 launcher=$4 python=$5
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

case $launcher in
  mpirun)
    command -v mpirun >/dev/null || { echo "SKIPPED: no mpirun here"; exit 77; }
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    on() { timeout 120 mpirun --oversubscribe -np "$1" "${@:2}" 2>&1; }
    ;;
  torchrun)
    "$python" -c 'import torch' 2>/dev/null || { echo "SKIPPED: no torch here"; exit 77; }
    on() { timeout 120 "$python" -m torch.distributed.run --standalone --no-python --nproc-per-node "$1" "${@:2}" 2>&1; }
    ;;
esac

expect() {  # RANKS WORDS ARGUMENTS...: the job succeeds and prints it once
  local output
  if ! output=$(on "$1" "$example" "${@:3}") || [ "$(grep -c "$2" <<<"$output")" -ne 1 ]; then
    echo "FAILED: $launcher, $1 ranks, ${*:3}: expected '$2'"
    echo "$output"
    exit 1
  fi
  echo "ok: $launcher, $1 ranks, ${*:3}"
}

expect 4 "saved by 4 ranks" save "$folder/checkpoint"
expect 2 "loaded by 2 ranks, the weights are the same" load "$folder/checkpoint"
expect 4 "loaded by 4 ranks, the weights are the same" load "$folder/checkpoint"
"$example" load "$folder/checkpoint" | grep -q "loaded by 1 ranks, the weights are the same" ||
  { echo "FAILED: one process without a launcher"; exit 1; }
# A job whose checkpoint is missing fails, and ends.
on 2 "$example" load "$folder/nothing" >/dev/null && { echo "FAILED: loaded nothing"; exit 1; }
output=$(on 3 "$guide" "$folder/guide") || { echo "FAILED: the guide on 3 ranks"; echo "$output"; exit 1; }
output=$(on 4 "$dtensor_guide" "$folder/dtensor") || { echo "FAILED: DTensor's guide on 4 ranks"; echo "$output"; exit 1; }
