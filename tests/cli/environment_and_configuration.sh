#!/usr/bin/env bash
# Options come from the command line, then from the environment, then from the file of --config.
. "$(dirname "$0")/common.sh"
model m.safetensors 12288
printf 'no-fsync = true\n[split]\nranks = 2\n' >shardctl.toml

expect 0 split m.safetensors -o two --config shardctl.toml
[ -e two/__1_0.distcp ] && [ ! -e two/__2_0.distcp ] || fail "the file's ranks"
SHARDCTL_RANKS=3 expect 0 split m.safetensors -o three --config shardctl.toml
[ -e three/__2_0.distcp ] && [ ! -e three/__3_0.distcp ] || fail "the environment's ranks"
SHARDCTL_RANKS=3 expect 0 split m.safetensors -o four --config shardctl.toml --ranks 4
[ -e four/__3_0.distcp ] || fail "the command line's ranks"
SHARDCTL_RANKS=three expect 2 split m.safetensors -o none
holds err SHARDCTL_RANKS
SHARDCTL_EXCLUDE=$'w\nother' expect 0 inspect m.safetensors
lacks out "w	"
SHARDCTL_EXCLUDE=w,b expect 2 inspect m.safetensors
holds err "SHARDCTL_EXCLUDE sets --exclude"
SHARDCTL_RANK=5 SHARDCTL_WORLD_SIZE=2 expect 2 inspect m.safetensors
holds err "rank 5 of 2 ranks does not exist"
holds err "SHARDCTL_RANK sets --rank; SHARDCTL_WORLD_SIZE sets --world-size"
SHARDCTL_JSON=1 expect 3 inspect absent
holds out shardctl.error/1
