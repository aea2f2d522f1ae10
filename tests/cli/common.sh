# Shared by the scripts: the program under test, a folder that is removed with the test, inputs, and expectations.
# Environment: SHARDCTL is the program, SHARD_DATA the folder tests/data.
set -Eeuo pipefail
trap '[[ $- != *e* ]] || echo "FAIL: line $LINENO: $BASH_COMMAND" >&2' ERR  # No command ends a script without a word.
export LC_ALL=C
unset ${!SHARDCTL_@}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
  echo "FAIL: $*" >&2
  for each in out err; do
    [ ! -s "$work/$each" ] || { echo "--- $each" >&2 && cat "$work/$each" >&2; }
  done
  exit 1
}

# expect CODE ARGUMENTS...: runs shardctl; its output is in the files out and err.
expect() {
  local wanted=$1 code=0
  shift
  "$SHARDCTL" "$@" >"$work/out" 2>"$work/err" || code=$?
  [ "$code" = "$wanted" ] || fail "shardctl $*: exit $code, not $wanted"
}

holds() { grep -qF -- "$2" "$work/$1" || fail "$1 does not hold: $2"; }
lacks() { ! grep -qF -- "$2" "$work/$1" || fail "$1 holds: $2"; }
is_empty() { [ ! -s "$work/$1" ] || fail "$1 is not empty"; }

little_endian() {
  local number=$1 i
  for i in 1 2 3 4 5 6 7 8; do
    printf "\\x$(printf %02x $((number & 255)))"
    number=$((number >> 8))
  done
}

# model FILE BYTES: a safetensors file of one uint8 tensor "w" of [BYTES / 1024, 1024] and one "b" of 2.
model() {
  local header='{"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":['$(($2 / 1024))',1024],"data_offsets":[2,'$(($2 + 2))']}}'
  { little_endian ${#header} && printf %s "$header" && printf xy && head -c "$2" /dev/zero | tr '\0' 'w'; } >"$1"
}
