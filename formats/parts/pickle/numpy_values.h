/// \file
/// numpy's scalars, dtypes and arrays inside pickles: what they are, without numpy.
///
/// Source: numpy/_core/src/multiarray (scalar, _reconstruct, array_setstate, dtype's __reduce__) and
/// numpy/_core/numeric.py (_frombuffer), under the module names of numpy 1 and 2.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/value.h"

namespace shard::pickle {

struct NumpyValue {
  enum class Kind { kScalar, kArray, kDType };
  Kind kind = Kind::kScalar;
  std::string_view code;  ///< The dtype as numpy writes it: "f8", "i4", "b1", "U5", "O"; byte order aside.
  bool big_endian = false;
  std::vector<std::int64_t> shape;  ///< An array's.
  bool column_major = false;
  std::optional<std::string_view> bytes;  ///< The elements' bytes; nothing where they are objects.
};

/// What `value` says if it makes one of numpy's values; nothing if it is something else or malformed.
std::optional<NumpyValue> as_numpy(const Value& value);

/// numpy's name of a dtype: "float64" of "f8"; the code itself for strings, records and others.
std::string numpy_dtype_name(std::string_view code);

/// Python's type: "numpy.float64", "numpy.ndarray", "numpy.dtype".
std::string numpy_type_name(const NumpyValue& value);

/// For people: "int16[2, 3]" of an array, "float64" of a scalar or dtype.
std::string numpy_summary(const NumpyValue& value);

}  // namespace shard::pickle
