/// \file
/// Starts kernels on a stream of CUDA. Inside libshard/device/cuda only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "libshard/device/kernels/cast_kernel.h"
#include "libshard/device/kernels/copy_shape.h"

namespace shard::cuda {

/// Errors are reported by cudaGetLastError.
void start_copy(const kernels::CopyShape& shape, const std::byte* from, std::byte* to, cudaStream_t stream);
void start_cast(const kernels::CastShape& shape, const std::byte* in, std::byte* out, std::int64_t* overflows,
                cudaStream_t stream);

}  // namespace shard::cuda
