# Shared by the scripts of this folder. Source it, do not run it.
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
cd "$(git -C "$root" rev-parse --show-toplevel)"
root=$PWD

dist=$root/dist              # What is given to others.
cache=$root/.cache/package   # What was fetched and built on the way; may be removed at any time.
version=$(sed -n 's/^project(shardctl VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)

# Every date in what is made is that of the commit.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export TZ=UTC LC_ALL=C.UTF-8

# The one-file program of an architecture: binary_of x86_64|aarch64. Built where it is not there yet.
binary_of() {
  local file=$dist/shardctl-$version-linux-$1
  [ -x "$file" ] || scripts/package binary "$1" >&2
  echo "$file"
}
