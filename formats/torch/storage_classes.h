/// \file
/// The storage classes that torch still writes. All other dtypes go through UntypedStorage and _rebuild_tensor_v3.
/// Private to this folder. Source: torch/storage.py, _dtype_to_storage_type_map and _new_dtypes.
#pragma once

#include <array>
#include <string_view>

#include "libshard/core/dtype.h"

namespace shard::torch_save {

struct StorageClass {
  std::string_view name;
  DType dtype;
};

inline constexpr auto kStorageClasses = std::to_array<StorageClass>({
    {"BFloat16Storage", DType::kBfloat16},
    {"BoolStorage", DType::kBool},
    {"ByteStorage", DType::kUint8},
    {"CharStorage", DType::kInt8},
    {"ComplexDoubleStorage", DType::kComplex128},
    {"ComplexFloatStorage", DType::kComplex64},
    {"DoubleStorage", DType::kFloat64},
    {"FloatStorage", DType::kFloat32},
    {"HalfStorage", DType::kFloat16},
    {"IntStorage", DType::kInt32},
    {"LongStorage", DType::kInt64},
    {"QInt32Storage", DType::kQint32},
    {"QInt8Storage", DType::kQint8},
    {"QUInt2x4Storage", DType::kQuint2x4},
    {"QUInt4x2Storage", DType::kQuint4x2},
    {"QUInt8Storage", DType::kQuint8},
    {"ShortStorage", DType::kInt16},
});

}  // namespace shard::torch_save
