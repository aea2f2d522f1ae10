# The format of a folder does not depend on the verb, nor on the loaded or installed plug-ins.
. "$(dirname "$0")/common.sh"
mkdir folder
model folder/model.safetensors 1024
printf '\211HDF\r\n\032\n' >folder/tf_model.h5

refused() {
  expect 4 "$@"
  holds err "it matches 2 formats: safetensors, hdf5"
  holds err "--from safetensors"
}
refused inspect folder
refused gather folder -o x.safetensors
if "$SHARDCTL" version --json | grep -q '"hdf5"'; then refused convert folder -o x.h5; fi
expect 0 inspect folder --from safetensors
expect 0 gather folder -o x.safetensors --from safetensors
[ ! -e x.h5 ] || fail "a failure left x.h5"
