# Shared by the scripts: the path of the repository, messages. Source it, do not run it.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
venv=${SHARD_VENV:-$root/.venv}  # The real clients' Python; SHARD_VENV points to an existing one.
export SHARD_PYTHON="$venv/bin/python"
# Python keeps its bytecode beside the clients, even if the caller's environment forbids it. Without it, each import of torch
# takes twice as long, and the tests import it hundreds of times.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX="$venv/bytecode"
export CCACHE_IGNOREOPTIONS='--param=ggc-*'  # The compiler's own memory (preset dev) does not change its output.

say() { printf '\n== %s\n' "$*"; }

# Configures and builds a preset: build PRESET [-DOPTION=VALUE] [TARGET...]. Configures each time, because a library may have
# been installed since; existing results stay.
build() {
  local preset=$1 option=
  shift
  if [[ ${1:-} = -D* ]]; then
    option=$1
    shift
  fi
  cmake --preset "$preset" $option >/dev/null
  cmake --build "build/$preset" ${1:+--target "$@"} | { grep -vE '^\[[0-9]+/[0-9]+\]|^ninja: ' || true; }
}
