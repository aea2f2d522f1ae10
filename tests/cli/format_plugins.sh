# A plug-in beside libshard_formats.so adds formats; without it they are refused by name.
. "$(dirname "$0")/common.sh"

# The same program with separate plug-ins, as in an installation; first with none.
mkdir installed
cp "$SHARD_FORMATS" installed
export LD_LIBRARY_PATH=$work/installed${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

printf 'TOY1 content' >x.toy
expect 4 inspect x.toy
holds err "not a checkpoint in any known format"
expect 8 convert x.toy --from hdf5 -o y.safetensors
holds err "does not have the format 'hdf5'"
holds err "libshard_hdf5.so is not installed"
holds err "libhdf5-dev"
model m.safetensors 1024
printf '\211HDF\r\n\032\n' >x.h5
expect 8 inspect x.h5
holds err "libshard_hdf5.so is not installed"
expect 8 convert m.safetensors -o m.h5
holds err "does not have the format 'hdf5'"
expect 2 convert m.safetensors -o m.h5 --to torch
holds err "contradicts the suffix"

cp "$SHARD_TOY_FORMATS" installed/libshard_hdf5.so
expect 0 inspect x.toy --from toy --json
holds out '"format": "toy"'
expect 0 convert x.toy --from toy -o y.toy2 --to toy-two
cmp x.toy y.toy2 || fail "convert changed the bytes"
expect 0 convert x.toy --from toy -o y.safetensors
expect 8 convert x.toy --from toy -o z.h5
holds err "libshard_hdf5.so does not bring it"

# A broken one is reported only if one of its formats is requested.
printf 'not a library' >installed/libshard_hdf5.so
expect 0 inspect m.safetensors
expect 4 inspect x.toy
printf '\211HDF\r\n\032\n' >x.h5
expect 8 inspect x.h5
holds err "cannot open the plug-in libshard_hdf5.so"

# The real one reports its library's version; without that library it is skipped.
if [ -n "${SHARD_HDF5:-}" ]; then
  cp "$SHARD_HDF5" installed/libshard_hdf5.so
  expect 0 version --json
  grep -qE '"libhdf5": "[0-9]+\.[0-9]+\.[0-9]+"' out || fail "libhdf5's version is not there"
fi

# The real one without libhdf5.
if [ -n "${SHARD_HDF5:-}" ]; then
  sed 's/libhdf5_serial\.so/libhdf5_absent\.so/g' "$SHARD_HDF5" >installed/libshard_hdf5.so
  expect 8 convert m.safetensors -o m.h5
  holds err "cannot open the plug-in libshard_hdf5.so"
  holds err "libhdf5-103-1"
  expect 0 version --json
  lacks out libhdf5
fi
