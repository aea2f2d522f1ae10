#!/usr/bin/env bash
# Effects of a reading verb on the system, by strace, for normal and hostile checkpoints of every format: it starts no
# program, opens no socket, loads no library after its own, opens nothing for writing, and no files except the named
# ones.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../cli/common.sh"
if ! command -v strace >"$work/which" || ! strace -o "$work/trace" true; then
  echo "SKIP: no strace here, or it may not trace"
  exit 0
fi
if [ -n "${SHARD_SANITIZE:-}" ]; then
  echo "SKIP: sanitizers do other things of their own"
  exit 0
fi

calls=execve,execveat,openat,open,openat2,creat,socket,socketpair,connect,bind,fork,vfork,rename,renameat,renameat2,unlink,unlinkat
calls+=,mkdir,mkdirat,link,linkat,symlink,symlinkat,chmod,fchmod,fchmodat,truncate,ftruncate,ptrace,mount,kill,tgkill
# The loader and the C library: libraries, their cache, locale and zone data, facts about the process and the machine.
system='/etc/ld\.so\.(cache|preload)|(/usr)?/lib(64)?/[^"]*|/usr/share/(locale|zoneinfo)/[^"]*|/proc/([0-9]+/cgroup|(self|filesystems|stat|cpuinfo|meminfo)[^"]*)|/sys/(devices/system|fs/cgroup|kernel/mm)[^"]*|/dev/(null|urandom)'
ldd "$SHARDCTL" | grep -oE '/[^ ]+' | xargs readlink -f >"$work/libraries"

# watch SOURCE ARGUMENTS...: runs shardctl and looks at its calls. Files below SOURCE's folder may be read.
watch() {
  local source=$1 folder
  shift
  folder=$(dirname "$(readlink -f "$source")")
  [ ! -d "$source" ] || folder=$(readlink -f "$source")
  strace -f -y -qq -o "$work/trace" -e trace="$calls" "$SHARDCTL" "$@" >"$work/out" 2>"$work/err" || true
  [ -s "$work/trace" ] || fail "no trace of shardctl $*"
  check "$folder" "$*"
}

check() {
  local folder=$1 what=$2
  sed -E 's/^[0-9]+ +//; /^(---|\+\+\+)/d; /^<\.\.\./d' "$work/trace" >"$work/calls"
  [ "$(grep -cE '^execve(at)?\(' "$work/calls")" = 1 ] || fail "$what: starts a program: $(grep execve "$work/calls" | tail -1)"
  ! grep -qE '^(socket|socketpair|connect|bind|fork|vfork|ptrace|mount|kill)\(' "$work/calls" ||
    fail "$what: $(grep -E '^(socket|connect|bind|fork|vfork|ptrace|mount|kill)' "$work/calls" | head -1)"
  ! grep -qE '^(rename|unlink|mkdir|link|symlink|chmod|fchmod|truncate|ftruncate|creat)' "$work/calls" ||
    fail "$what: $(grep -E '^(rename|unlink|mkdir|link|symlink|chmod|fchmod|truncate|ftruncate|creat)' "$work/calls" | head -1)"
  ! grep -E '^open' "$work/calls" | grep -qE 'O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND' ||
    fail "$what: opens for writing: $(grep -E 'O_WRONLY|O_RDWR|O_CREAT' "$work/calls" | head -1)"
  libraries_come_first "$what"
  only_named_files "$folder" "$what"
}

# After the first file of the checkpoint was opened, no library is.
libraries_come_first() {
  local late
  late=$(awk -v folder="$(basename "$PWD")" '/^open/ && index($0, folder) && !/\.so/ {seen = 1} seen && /\.so[".]/ && !/ENOENT/' "$work/calls")
  [ -z "$late" ] || fail "$1: loads a library while reading: $late"
}

# By the path of each descriptor that an open returned, so that neither links nor relative names hide one.
only_named_files() {
  local other
  other=$(grep -E '^open' "$work/calls" | grep -oE '= [0-9]+<.*>$' | sed -E 's/^= [0-9]+<(.*)>$/\1/' |
    grep -vE "^($system)\$" | grep -vxF -f "$work/libraries" | grep -vF -- "$1/" | grep -vxF -- "$1" || true)
  [ -z "$other" ] || fail "$2: opens $other"
}

export HOME=$work/home XDG_CONFIG_HOME=$work/home
mkdir -p inputs
model inputs/m.safetensors 4096
cp -r "$SHARD_DATA"/torch "$SHARD_DATA"/dcp inputs/
mkdir -p inputs/golden
for version in 1.13.1 2.11.0 2.15.0; do
  for folder in "$SHARD_DATA"/golden/$version/ranks_sharded_r2 "$SHARD_DATA"/golden/$version/ranks_dtensor_r2 \
    "$SHARD_DATA"/golden/$version/dcp_hf_* "$SHARD_DATA"/golden/$version/dcp_zstd* "$SHARD_DATA"/golden/$version/dcp_local*; do
    [ ! -d "$folder" ] || cp -r "$folder" "inputs/golden/$version-$(basename "$folder")"
  done
done
python3 -B "$here/write_cases.py" inputs/hostile running places
count=0
for source in inputs/m.safetensors inputs/torch/*.pt inputs/torch/hf inputs/dcp/one_rank inputs/dcp/four_ranks inputs/golden/* inputs/hostile/*/*; do
  [ -e "$source" ] || continue
  case $(basename "$source") in home | stdout | stderr) continue ;; esac
  watch "$source" inspect --json "$source"
  count=$((count + 1))
done
for source in inputs/m.safetensors inputs/torch/state.pt inputs/torch/hf inputs/dcp/four_ranks; do
  watch "$source" inspect "$source"
  watch "$source" digest "$source"
  watch "$source" diff "$source" "$source"
  count=$((count + 3))
done
[ ! -e pwned ] || fail "a command of a file was run"
[ $count -gt 60 ] || fail "only $count checkpoints were tried"

# The script must find these calls if they occur.
for control in "sh -c /bin/true" "cat /etc/passwd" "tee written" "ln -s a b"; do
  strace -f -y -qq -o "$work/trace" -e trace="$calls" $control </dev/null >"$work/out" 2>&1 || true
  ! (check /absent "$control") >"$work/control" 2>&1 || fail "'$control' does not look wrong"
done
echo "watched $count runs"
