/// \file
/// Values of a checkpoint as Python objects.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <string_view>
#include <unordered_map>

#include "libshard/core/value.h"

namespace shard::python {

/// A name or text of a file as a str. It may contain surrogates. Bytes that are not UTF-8 become lone surrogates, as
/// in the names of Python's files. Threads: holds the GIL.
nanobind::object str(std::string_view text);

/// Returns the object for a kTensor's index in the catalog.
using TensorObject = std::function<nanobind::object(std::int64_t index)>;
/// Returns the object for a value of a class: its type's name, and its parts, from which some values can be made. None:
/// there are no such parts.
/// - builtins.complex, torch.device: the tuple of its arguments
/// - torch.dtype: its name
/// - argparse.Namespace, types.SimpleNamespace: the dict of its attributes
/// - values of numpy: whether it is a dtype, the dtype's code, the shape of an array (None for a scalar), whether it is
///   column-major, and a bytearray of the elements
using ClassObject = std::function<nanobind::object(std::string_view type, nanobind::object parts)>;
/// Returns the object for a torch.Size: the tuple of its sizes.
using SizeObject = std::function<nanobind::object(nanobind::object sizes)>;

/// Converts values to None, bool, int, float, str, bytes, bytearray, list, tuple, dict, set and frozenset. A value that
/// several containers share becomes one object. A Parameter becomes the object of its tensor. Values of all other kinds
/// become objects of `tensor` and `of_class`; nothing is imported or called by name. Threads: holds the GIL.
class PythonValues {
 public:
  /// Without `of_size`, a torch.Size becomes a tuple.
  PythonValues(TensorObject tensor, ClassObject of_class, SizeObject of_size = nullptr)
      : tensor_(std::move(tensor)), of_class_(std::move(of_class)), of_size_(std::move(of_size)) {}
  /// \throws Error kCorruption  a container contains itself, or is nested too deeply
  nanobind::object convert(const Value& value) { return convert(value, 0); }

 private:
  nanobind::object convert(const Value& value, int depth);
  nanobind::object container(const Value& value, int depth);
  nanobind::object mapping(const Value& value, int depth);
  nanobind::object parts(const Value& value, int depth);

  TensorObject tensor_;
  ClassObject of_class_;
  SizeObject of_size_;
  std::unordered_map<const Value*, nanobind::object> known_;  ///< Null while a container is converted.
};

}  // namespace shard::python
