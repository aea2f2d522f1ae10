# Shared by the scripts of this folder. Source it, do not run it.
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

dist=$root/dist  # The release packages.
cache=$root/.cache/package  # Fetched and built intermediate files; may be removed at any time.
version=$(sed -n 's/^project(shardctl VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)

# Every date in the packages is that of the commit.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export TZ=UTC LC_ALL=C.UTF-8

fail() {
  echo "FAIL: $*" >&2
  exit 1
}

# Options of tar for an archive that depends only on the files' names and bytes.
tar_options=(--sort=name "--mtime=@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX)

# The one-file program of an architecture, built if it does not exist: binary_of x86_64|aarch64.
binary_of() {
  local file=$dist/shardctl-$version-linux-$1
  [ -x "$file" ] || scripts/package binary "$1" >&2
  echo "$file"
}

# The archive of the plug-ins of an architecture, which may not be there: plugins_archive x86_64|aarch64.
plugins_archive() {
  echo "$dist/shardctl-$version-plugins-linux-$1.tar.gz"
}

# The wheels with the native module: the tag of each, and the versions of Python that can build it. The module for the stable ABI
# fits all later versions.
module_wheels=('cp310-cp310 3.10' 'cp311-cp311 3.11' 'cp312-abi3 3.12 3.13 3.14' 'cp313-cp313t 3.13t' 'cp314-cp314t 3.14t')

# The first Python of these versions (3.11, or 3.13t for a free-threaded one) that this machine has with its headers, in PATH, of
# pyenv, or of scripts/package pythons: python_of VERSION...
python_of() {
  local version python
  for version in "$@"; do
    for python in $(type -ap "python$version") "${PYENV_ROOT:-$HOME/.pyenv}/versions/${version%t}".*/bin/python "$cache"/pythons/*/bin/python3; do
      "$python" -c "
import os, sys, sysconfig
has_headers = os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h'))
version = '%d.%d' % sys.version_info[:2] + ('t' if 't' in sys.abiflags else '')
sys.exit(not has_headers or version != '$version')" 2>/dev/null || continue
      echo "$python"
      return
    done
  done
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

# debian SUITE ARCH COMMAND...: apt-get of a Debian SUITE, as released, of the architecture ARCH (amd64, arm64), with this
# machine's mirror and keys; source packages of today. It changes nothing on this machine.
debian() {
  local state=$cache/debian-$1-$2 keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  if [ ! -s "$state/sources.list" ]; then
    mkdir -p "$state/lists/partial"
    : >"$state/status"
    apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' | sort -u |
      while read -r mirror suite component; do
        echo "deb-src [signed-by=$keyring] $mirror ${suite/bookworm/$1} $component"
        [ "$suite" != bookworm ] || echo "deb [signed-by=$keyring] $mirror $1 $component"
      done >"$state/sources.list.part"
    mv "$state/sources.list.part" "$state/sources.list"
    debian "$1" "$2" update -q >&2
  fi
  apt-get -o Dir::Etc::SourceList="$state/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$state/lists" \
    -o Dir::State::status="$state/status" -o Dir::Cache="$state" -o APT::Architecture="$2" -o APT::Architectures="$2" \
    -o APT::Sandbox::User=root "${@:3}"
}

# The glibc of Debian 11 (2.31), the oldest on Debian's mirrors, in a folder with nothing else: old_root x86_64|aarch64
# FOLDER.
old_root() {
  local debian_name=amd64
  [ "$1" = x86_64 ] || debian_name=arm64
  mkdir -p "$2"
  (cd "$2" && debian bullseye "$debian_name" download -q libc6 >&2 && dpkg-deb --extract libc6_*.deb . && rm libc6_*.deb)
}

# A minimal Debian 12 in a folder, created if it does not exist (debootstrap, root): clean_root FOLDER.
clean_root() {
  [ ! -e "$1/etc/debian_version" ] || return 0
  say "making a clean Debian in $1"
  mkdir -p "$1"
  debootstrap --variant=minbase bookworm "$1" "$(sed -nE 's/^(URIs: |deb )(\[.*\] )?(http[^ ]*debian)( .*|\/ .*)?$/\3/p' \
    /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null | head -n 1)" >/dev/null
  cp -r /etc/apt/apt.conf.d "$1/etc/apt/"
  cp /etc/resolv.conf "$1/etc/"
}

# serve_https FOLDER: a server on this machine, in the background, for the checkpoint of the demo. Sets `https` to its URL.
# Its certificate is FOLDER/certificate.pem. The caller ends its jobs. No variable names other certificates from then on.
serve_https() {
  unset AWS_CA_BUNDLE CURL_CA_BUNDLE SSL_CERT_FILE REQUESTS_CA_BUNDLE
  mkdir -p "$1/web"
  cp -r tests/data/demo/ckpt "$1/web/ckpt"
  : >"$1/address"
  PYTHONPATH=tests/stores python3 -B -c '
import signal, sys, server
with server.Server(sys.argv[1]) as served:
    print(*served.secure(), sep="\n", flush=True)
    signal.pause()' "$1" >"$1/address" &
  for _ in $(seq 100); do
    [ "$(wc -l <"$1/address")" != 2 ] || break
    sleep 0.1
  done
  https=$(head -n 1 "$1/address")/web/ckpt
}
