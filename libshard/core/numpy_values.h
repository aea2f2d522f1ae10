/// \file
/// Reads numpy's scalars, dtypes and arrays in pickles, without numpy.
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

namespace shard {

struct NumpyValue {
  enum class Kind { kScalar, kArray, kDType };
  Kind kind = Kind::kScalar;
  std::string_view code;  ///< The dtype as numpy writes it, without byte order: "f8", "i4", "b1", "U5", "O".
  bool big_endian = false;
  std::vector<std::int64_t> shape;  ///< The shape of an array.
  bool column_major = false;
  std::optional<std::string_view> bytes;  ///< The elements' bytes; empty if they are objects.
};

/// Reads `value` as one of numpy's values; nothing if it is something else or malformed.
std::optional<NumpyValue> as_numpy(const Value& value);

/// numpy's name of a dtype: "float64" for "f8"; the code itself for strings, records and others.
std::string numpy_dtype_name(std::string_view code);

/// The Python type: "numpy.float64", "numpy.ndarray", "numpy.dtype".
std::string numpy_type_name(const NumpyValue& value);

/// str() of a scalar, for example "3", "0.1" and "True". Nothing for other values, float16 and malformed scalars.
std::optional<std::string> numpy_text(const NumpyValue& value);

/// The elements of an array or a scalar as row-major, little-endian bytes. Nothing for objects, records, times, and
/// malformed values.
std::optional<std::string> numpy_elements(const NumpyValue& value);

/// A text for users: "int16[2, 3]" for an array, "float64" for a scalar or dtype.
std::string numpy_summary(const NumpyValue& value);

}  // namespace shard
