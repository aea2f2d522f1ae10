# A plug-in that the dynamic loader finds no LibTorch for takes that of the Python environment, if it is of the right version.
# Environment: as for tests/cli; SHARD_LIBRARY is libshard.so, SHARD_GLOO the plug-in, SHARD_LIBTORCH the folder torch.
. "$(dirname "$0")/../cli/common.sh"

# The same program with a plug-in without a record of its build: its path to LibTorch is overwritten.
mkdir installed
cp "$SHARD_LIBRARY" installed
python3 - "$SHARD_GLOO" installed/libshard_gloo.so "$SHARD_LIBTORCH/lib" <<'END'
import sys
source, copy, path = sys.argv[1:]
text = open(source, "rb").read()
assert path.encode() in text, f"{source} does not name {path}"
open(copy, "wb").write(text.replace(path.encode(), b"/" + b"-" * (len(path.encode()) - 1)))
END
export LD_LIBRARY_PATH=$work/installed PATH=/usr/bin:/bin
unset VIRTUAL_ENV CONDA_PREFIX

version=$(basename "$SHARD_LIBTORCH"/../torch-*.dist-info .dist-info)
version=${version#torch-}
environment() {  # NAME VERSION
  mkdir -p "$1/lib/python3.11/site-packages/torch-$2.dist-info" "$1/bin"
  ln -s "$SHARD_LIBTORCH" "$1/lib/python3.11/site-packages/torch"
}
environment right "$version"
environment other 2.99.0+cpu

expect 0 env
lacks out gloo
VIRTUAL_ENV=$work/right expect 0 env
holds out gloo
CONDA_PREFIX=$work/right expect 0 env
holds out gloo
PATH=$work/right/bin:$PATH expect 0 env
holds out gloo
VIRTUAL_ENV=$work/other PATH=$work/right/bin:$PATH expect 0 env
holds out gloo
VIRTUAL_ENV=$work/other expect 0 env
lacks out gloo

export VIRTUAL_ENV=$work/other RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29733
expect 8 inspect "$SHARD_DATA/demo/ckpt"
holds err "its plug-in was built for LibTorch ${version%%+*}, and in $work/other/lib/python3.11/site-packages/torch/lib is LibTorch 2.99.0"
holds err "install LibTorch ${version%%+*}"
