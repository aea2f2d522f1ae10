#!/usr/bin/env bash
# A limit of open files that is too low is not damage of a checkpoint: exit code 6 and the remedy, and never "damaged".
. "$(dirname "$0")/common.sh"
model m.safetensors $((1 << 20))
expect 0 split m.safetensors -o cut --ranks 6

for line in "verify cut" "gather cut -o made.safetensors" "repair cut -o made"; do
  (ulimit -n 7 && expect 6 $line)
  holds err "Too many open files"
  holds err "ulimit -n"
done
[ ! -e made ] && [ ! -e made.safetensors ] || fail "something was written"

# A soft limit is raised.
(ulimit -Sn 40 && expect 0 split m.safetensors -o many --to torch-ranks --ranks 60)

# Wherever the limit is reached while the output is made, the message names it.
for most in $(seq 7 20); do
  code=0
  (ulimit -n "$most" && "$SHARDCTL" split cut -o made --shards 3 -j 1 >out 2>err) || code=$?
  [ "$code" = 0 ] || [ "$code" = 6 ] || fail "ulimit -n $most: exit $code"
  [ "$code" = 0 ] || holds err "ulimit -n"
  rm -rf made
done

# Ranks that are threads share the limit. The rank that cleans up waits for the descriptors of the others.
expect 0 split m.safetensors -o halves --ranks 2
for most in $(seq 38 52) $(seq 38 52); do
  (ulimit -n "$most" && "$SHARDCTL" reshard halves -o made --ranks 32 --to torch-ranks --local-ranks 8 >out 2>err) || true
  rm -rf made
  ! ls -A | grep shardctl- || fail "ulimit -n $most: the staged output stays"
done
