# Shared by the scripts of this folder. Source it, do not run it.
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

dist=$root/dist             # What is given to others.
cache=$root/.cache/package  # What was fetched and built on the way; may be removed at any time.
version=$(sed -n 's/^project(shardctl VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)

# Every date in what is made is that of the commit.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export TZ=UTC LC_ALL=C.UTF-8

# The one-file program of an architecture, built where it is not there yet: binary_of x86_64|aarch64.
binary_of() {
  local file=$dist/shardctl-$version-linux-$1
  [ -x "$file" ] || scripts/package binary "$1" >&2
  echo "$file"
}

# The architecture that an argument names, or this machine's.
architecture() {
  case ${1:-$(uname -m)} in
    x86_64 | aarch64) echo "${1:-$(uname -m)}" ;;
    *)
      echo "architecture '$1': expected x86_64 or aarch64" >&2
      exit 2
      ;;
  esac
}
