// The only source that nvcc compiles: bodies of kernels (libshard/device/kernels) as kernels.
#include "libshard/device/cuda/launches.h"
#include "libshard/device/kernels/copy_kernels.h"

namespace shard::cuda {

namespace {

template <class Body>
__global__ void __launch_bounds__(kernels::kThreads) run_flat(const __grid_constant__ Body body) {
  body(blockIdx.x, static_cast<int>(threadIdx.x));
}

template <class Body>
__global__ void __launch_bounds__(kernels::kThreads) run_tiled(const __grid_constant__ Body body) {
  __shared__ typename Body::Tile tile;
  body.fill(blockIdx.x, static_cast<int>(threadIdx.x), tile);
  __syncthreads();
  body.empty(blockIdx.x, static_cast<int>(threadIdx.x), tile);
}

/// \pre at most 2^31 - 1 blocks, which no device's memory exceeds.
struct Launch {
  cudaStream_t stream;

  template <class Body>
  void flat(const Body& body, std::int64_t blocks) const {
    run_flat<<<static_cast<unsigned>(blocks), kernels::kThreads, 0, stream>>>(body);
  }
  template <class Body>
  void tiled(const Body& body, std::int64_t blocks) const {
    run_tiled<<<static_cast<unsigned>(blocks), kernels::kThreads, 0, stream>>>(body);
  }
};

}  // namespace

void start_copy(const kernels::CopyShape& shape, const std::byte* from, std::byte* to, cudaStream_t stream) {
  kernels::launch_copy(shape, from, to, Launch{stream});
}

void start_cast(const kernels::CastShape& shape, const std::byte* in, std::byte* out, std::int64_t* overflows,
                cudaStream_t stream) {
  kernels::launch_cast(shape, in, out, overflows, Launch{stream});
}

}  // namespace shard::cuda
