#!/usr/bin/env bash
# --progress json: one line for all ranks; with -v also one for each of several ranks, whose parts sum to it.
. "$(dirname "$0")/common.sh"
model m.safetensors 1048576

# last RANK FIELD: of the last line of a rank (null: of all).
last() { grep '^{' err | grep "\"rank\": $1}" | tail -n 1 | sed -E "s/.*\"$2\": ([^,}]*).*/\1/"; }

expect 0 split m.safetensors -o cut --ranks 4 --local-ranks 2 --progress json
[ "$(last null bytes_done)" = 1048578 ] || fail "the sum is not there"
[ -z "$(last 0 bytes_done)" ] || fail "a rank's line without -v"
expect 0 reshard cut -o recut --ranks 3 --local-ranks 2 --progress json -v
zero=$(last 0 bytes_done) one=$(last 1 bytes_done) all=$(last null bytes_done)
[ "$all" = 1048578 ] && [ $((zero + one)) = "$all" ] || fail "parts $zero and $one of $all"
[ "$(last 1 bytes_total)" = 0 ] && [ "$(last 1 seconds_left)" = null ] || fail "nobody knows what rank 1 will do"
expect 0 gather cut -o m.pt --progress json -v
[ "$(grep -c '"rank": 0' err)" = 0 ] || fail "one rank alone is all"
expect 0 gather cut -o n.pt --local-ranks 2 --progress json -v -q
! grep -q '^{' err || fail "-q prints progress"
