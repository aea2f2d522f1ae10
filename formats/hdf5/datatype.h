/// \file
/// Converts between HDF5's datatypes and our dtypes. Pure. Inside formats/hdf5 only.
///
/// | dtype | in the file |
/// |---|---|
/// | integers, float32, float64 | the IEEE and standard types, little-endian |
/// | bool | an enum of int8 with FALSE = 0 and TRUE = 1, as h5py writes it |
/// | float16, bfloat16, float8_e5m2 | a float of the same bits, so every reader that converts gets the right values |
/// | complex32, complex64, complex128 | a compound of r and i, as h5py writes it |
/// | all others | opaque, one element each (float6: bytes), with a string attribute `dtype`, as Keras marks its
/// bfloat16 |
///
/// float8_e4m3fn is opaque, because as a float its 448 would be read as NaN: HDF5 only supports IEEE's infinities.
#pragma once

#include <optional>
#include <string_view>

#include "formats/hdf5/described.h"
#include "libshard/core/dtype.h"

namespace shard::hdf5 {

/// The attribute that names the dtype of opaque elements.
inline constexpr std::string_view kDtypeAttribute = "dtype";
/// The attribute with the shape of a tensor whose elements are packed (float6); its dataset contains bytes.
inline constexpr std::string_view kShapeAttribute = "shardctl.shape";

/// How elements of a datatype are read.
struct ElementType {
  DType dtype{};
  bool swap = false;                 ///< Big-endian.
  std::vector<std::int64_t> dims{};  ///< For an array type: dimensions that follow those of the dataset.
  bool is_enum = false;              ///< An enum other than bool; the names of its values are lost.
};

/// The dtype of elements of `type`. `dtype_attribute` is the text of the dataset's attribute `dtype`, which defines
/// opaque elements; without it, those of one and two bytes are bits8 and bits16. \returns nothing for types without a
/// dtype: strings, references, compounds other than complex numbers, ...
std::optional<ElementType> element_type(const Type& type, std::string_view dtype_attribute);

/// The datatype in which `dtype` is written.
Type type_of(DType dtype);
/// Whether `dtype` is written as opaque elements, which need the attribute `dtype`.
bool is_opaque(DType dtype);

/// Whether attributes and datasets of strings can be written in this type. True for all except references, sequences of
/// variable length, times and HDF5 2.0's complex numbers, and types that contain those.
bool is_writable(const Type& type);

/// "big-endian float of 16 bytes", "reference", ...: for messages.
std::string to_string(const Type& type);

}  // namespace shard::hdf5
