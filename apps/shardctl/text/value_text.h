/// \file
/// Objects (values that are not tensors) as text and as JSON.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "libshard/catalog/catalog.h"
#include "libshard/core/json_writer.h"

namespace shard::app {

/// The value as Python would print it, truncated with "..." after about `limit` bytes. Tensors appear by name. A value
/// that is nested too deeply, or contains itself, appears as "...". A null value (not read) is an empty text. Cost:
/// O(limit).
std::string value_text(const Catalog& catalog, const Value* value, std::size_t limit);

inline constexpr std::size_t kObjectPreview = 200;  ///< The `limit` for lists of objects.

/// The whole text of a value. It is printed without being stored. Ownership: borrows both arguments.
class WholeText {
 public:
  /// \throws Error kCorruption  the text is far too long for the checkpoint's files: a value that repeats its parts
  ///   again and again would print forever
  WholeText(const Catalog& catalog, const Value* value);
  /// Passes the text in pieces that end at character boundaries.
  void print(const std::function<void(std::string_view)>& piece) const;

 private:
  const Catalog& catalog_;
  const Value* value_;
};

/// "sparse tensor", "quantized tensor", "tensor subclass, module.Name", ... for a value that is a tensor of a kind that
/// cannot be written; otherwise empty.
std::string foreign_tensor(const Value* value);

/// The `type` in JSON: Python's name; "torch.Tensor (sparse)" and the like for a foreign tensor; "unknown" for a value
/// that was not read.
std::string value_type(const Value* value);

/// True if JSON's `value` can represent it: none, bool, int, float, str.
bool is_scalar(const Value* value);
/// The JSON of `value`: a scalar (integers beyond 2^53, NaN and infinities as strings), otherwise null.
void write_value(JsonWriter& json, const Value* value);

}  // namespace shard::app
