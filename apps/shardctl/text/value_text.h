/// \file
/// Objects (values that are not tensors) as text and as JSON.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "libshard/catalog/catalog.h"
#include "libshard/core/json_writer.h"

namespace shard::app {

/// A value as Python would print it, cut with "..." after about `limit` bytes. Tensors appear by name; what is nested
/// too deep, or holds itself, is "...". A null value (not read) is empty text. Cost: O(limit).
std::string value_text(const Catalog& catalog, const Value* value, std::size_t limit);

inline constexpr std::size_t kObjectPreview = 200;  ///< A `limit` for lists of objects.

/// The whole text of a value, which is printed without being held. Ownership: borrows both.
class WholeText {
 public:
  /// \throws Error kCorruption  the text is out of proportion to the checkpoint's files: a value that repeats its parts
  ///   over and over would print for ever
  WholeText(const Catalog& catalog, const Value* value);
  /// Hands it over in pieces that cut no character.
  void print(const std::function<void(std::string_view)>& piece) const;

 private:
  const Catalog& catalog_;
  const Value* value_;
};

/// "sparse tensor", "quantized tensor", "tensor subclass, module.Name", ... for a value that is a tensor after all, of
/// a kind that cannot be written; else empty.
std::string foreign_tensor(const Value* value);

/// JSON's `type`: Python's name; "torch.Tensor (sparse)" and the like for a foreign tensor; "unknown" for a value that
/// was not read.
std::string value_type(const Value* value);

/// True for what JSON's `value` holds: none, bool, int, float, str.
bool is_scalar(const Value* value);
/// The JSON of `value`: a scalar (integers beyond 2^53, NaN and infinities as strings), else null.
void write_value(JsonWriter& json, const Value* value);

}  // namespace shard::app
