# --device cuda writes the same bytes, through the device; if a machine lacks it, it is refused with the code and the
# numbers. The devices are fakes, in a fake plug-in.
. "$(dirname "$0")/common.sh"

# The same program with a separate plug-in; first with none.
mkdir installed
cp "$SHARD_LIBRARY" installed
export LD_LIBRARY_PATH=$work/installed${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
model m.safetensors $((3 << 20))

expect 8 split m.safetensors -o no --ranks 2 --device cuda
holds err "the CUDA plug-in is not installed"
holds err "install the plug-in libshard_cuda.so there"
holds err "--device cpu"
[ ! -e no ] || fail "something was written"
expect 0 env
holds out "devices        none: "
holds out "cuda runtime   none"
expect 2 split m.safetensors -o no --ranks 2 --device gpu
holds err "--device"
expect 0 digest m.safetensors --device cuda
expect 0 split m.safetensors -o cpu --to torch-ranks --ranks 3 --dim 1 --device cpu

cp "$SHARD_CUDA_STAND_IN" installed/libshard_cuda.so
export STAND_IN_LOG=$work/log
expect 0 env
holds out "devices        cuda:0: double, compute capability 9.0"
holds out "cuda driver    13.1"
holds out "nccl           2.28.9"

expect 0 split m.safetensors -o cuda --to torch-ranks --ranks 3 --dim 1 --device cuda
diff -r cpu cuda || fail "other bytes with --device cuda"
grep -q '^in 31' log || fail "the tensor did not go through the device: $(cat log)"
expect 0 gather cpu -o f16.safetensors --cast w=float16
SHARDCTL_DEVICE=cuda:0 expect 0 gather cpu -o cuda16.safetensors --cast w=float16
cmp f16.safetensors cuda16.safetensors || fail "other bytes with a cast on the device"
grep -q 'cast 31' log || fail "nothing was cast on the device: $(cat log)"

# Weights that are computed.
expect 0 split "$SHARD_DATA/quantized/awq" -o plain --to torch-ranks --ranks 2 --dequantize
expect 0 split "$SHARD_DATA/quantized/awq" -o cuda-plain --to torch-ranks --ranks 2 --dequantize --device cuda
diff -r plain cuda-plain || fail "other weights with --device cuda"

# With ranks: each its own device.
STAND_IN_GPUS=2 expect 0 split m.safetensors -o two --to torch-ranks --ranks 3 --dim 1 --device cuda --local-ranks 2
diff -r cpu two || fail "other bytes from two ranks with a device each"
STAND_IN_GPUS=2 expect 8 split m.safetensors -o no --ranks 3 --device cuda --local-ranks 4
holds err "4 ranks of this host have 2 GPUs"
STAND_IN_GPUS=2 expect 8 split m.safetensors -o no --ranks 3 --backend nccl --local-ranks 4
holds err "backend 'nccl' cannot serve 4 local ranks on 2 GPUs"
STAND_IN_GPUS=2 expect 0 split m.safetensors -o threads --to torch-ranks --ranks 3 --dim 1 --backend nccl --local-ranks 2
diff -r cpu threads || fail "other bytes from threads where nccl was asked for"
STAND_IN_GPUS=2 expect 2 split m.safetensors -o no --ranks 3 --device cuda:1 --local-ranks 2
holds err "cannot use GPU 1 for 2 ranks"

# Parts that a machine may lack.
expect 8 split m.safetensors -o no --ranks 3 --device cuda:1
holds err "there is no GPU 1"
STAND_IN_GPUS=0 expect 8 split m.safetensors -o no --ranks 3 --device cuda
holds err "cannot use a GPU: CUDA found no device"
STAND_IN_DRIVER=0 expect 8 split m.safetensors -o no --ranks 3 --device cuda
holds err "there is no NVIDIA driver"
STAND_IN_DRIVER=12040 expect 8 split m.safetensors -o no --ranks 3 --device cuda
holds err "the driver supports CUDA 12.4 only"
holds err "CUDA 13.0"
STAND_IN_FREE=1000000 expect 6 split m.safetensors -o no --ranks 3 --dim 1 --device cuda --json
holds out '"expected": "4194304"'
holds out '"found": "875000"'
expect 2 split m.safetensors -o no --ranks 3 --dim 1 --device cuda --max-memory 2MiB
holds err "at least 4MiB"
[ ! -e no ] || fail "something was written"
