#include "apps/shardctl/text/value_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/parts/pickle/foreign_holder.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/catalog/element_counts.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/numpy_values.h"
#include "libshard/core/python_text.h"
#include "libshard/core/short_text.h"

namespace shard::app {
namespace {

/// Limits for the text of an object: a constant, and a part for each byte of the checkpoint's files. A class that is
/// named again takes two bytes in a pickle and about thirty in the text.
constexpr std::int64_t kAlwaysPrinted = 16 << 20, kPrintedPerByte = 64;
constexpr std::int64_t kExactInt = std::int64_t{1}
                                   << 53;  ///< Every JSON reader represents integers up to this one exactly.

/// Walks a value and passes its text to `Out` in parts. `out.add(text)` returns false to stop the walk.
template <class Out>
class Printer {
 public:
  Printer(const Catalog& catalog, Out& out) : catalog_(catalog), out_(out) {}

  bool print(const Value* value, int depth = 0) {
    if (value == nullptr) return out_.add("None");
    if (depth > kMaxValueDepth) return out_.add("...");
    switch (value->kind) {
      case ValueKind::kNone:
        return out_.add("None");
      case ValueKind::kBool:
        return out_.add(value->boolean() ? "True" : "False");
      case ValueKind::kInt:
        return out_.add(fmt::format("{}", value->number));
      case ValueKind::kLong:
        return out_.add(integer_text(value->text()));
      case ValueKind::kFloat:
        return out_.add(real_text(value->real));
      case ValueKind::kString:
        return text("", value->text());
      case ValueKind::kBytes:
        return text("b", value->text());
      case ValueKind::kByteArray:
        return text("bytearray b", value->text());
      case ValueKind::kList:
        return items("[", value->items(), "]", depth);
      case ValueKind::kTuple:
        return items("(", value->items(), value->items().size() == 1 ? ",)" : ")", depth);
      case ValueKind::kSet:
        return items("set([", value->items(), "])", depth);
      case ValueKind::kFrozenSet:
        return items("frozenset([", value->items(), "])", depth);
      case ValueKind::kDict:
        return out_.add("{") && pairs(value->items(), depth) && out_.add("}");
      case ValueKind::kGlobal:
        if (value->is_global("builtins", "Ellipsis")) return out_.add("Ellipsis");
        [[fallthrough]];
      case ValueKind::kOpaque:
        return out_.add(value->module()) && out_.add(".") && out_.add(value->text());
      case ValueKind::kCall:
        return call(*value, depth);
      case ValueKind::kPersid:
        return items("persistent(", value->items(), ")", depth);
      case ValueKind::kTensor:
        return tensor(*value);
    }
    return true;
  }

 private:
  bool text(std::string_view prefix, std::string_view content) {
    // Add a long text in parts, so that a short preview stays cheap.
    constexpr std::size_t kPiece = 4096;
    if (!out_.add(prefix) || !out_.add("'")) return false;
    for (std::size_t piece = 0; !content.empty(); content.remove_prefix(piece)) {
      piece = front_of_characters(content, kPiece);
      if (!out_.add(python_escaped(content.substr(0, piece), !prefix.empty(), '\''))) return false;
    }
    return out_.add("'");
  }

  bool items(std::string_view open, std::span<Value* const> values, std::string_view close, int depth) {
    if (!out_.add(open)) return false;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i > 0 && !out_.add(", ")) return false;
      if (!print(values[i], depth + 1)) return false;
    }
    return out_.add(close);
  }

  bool pairs(std::span<Value* const> values, int depth) {
    for (std::size_t i = 0; i + 1 < values.size(); i += 2) {
      if (i > 0 && !out_.add(", ")) return false;
      if (!print(values[i], depth + 1) || !out_.add(": ") || !print(values[i + 1], depth + 1)) return false;
    }
    return true;
  }

  bool call(const Value& value, int depth) {
    if (pickle::is_foreign_holder(value)) return print(value.callee(), depth + 1);
    if (const std::string_view type = torch_save::tensor_subclass(value); !type.empty()) return out_.add(type);
    if (!print(value.callee(), depth + 1) || !items("(", value.items(), ")", depth)) return false;
    if (const CallExtra* const extra = value.extra(); extra != nullptr) {
      if (!extra->list_items.empty() && !items("[", extra->list_items, "]", depth)) return false;
      if (!extra->dict_items.empty() && !(out_.add("{") && pairs(extra->dict_items, depth) && out_.add("}")))
        return false;
      if (extra->kwargs != nullptr && !(out_.add(" with ") && print(extra->kwargs, depth + 1))) return false;
    }
    return value.state() == nullptr || (out_.add(" in state ") && print(value.state(), depth + 1));
  }

  bool tensor(const Value& value) {
    const auto index = static_cast<std::size_t>(value.number);
    const bool known = value.number >= 0 && index < catalog_.tensors.size();
    return out_.add("tensor ") && text("", known ? catalog_.tensors[index].name : std::string_view("?"));
  }

  const Catalog& catalog_;
  Out& out_;
};

struct Preview {
  std::string text;
  std::size_t limit;
  bool add(std::string_view piece) {
    text += piece.substr(0, limit + 1 - std::min(text.size(), limit + 1));
    return text.size() <= limit;
  }
};

/// Each visit of a value prints something, so a limit of the text also limits the visits.
struct Count {
  std::int64_t limit;
  std::int64_t bytes = 0;
  bool add(std::string_view piece) {
    bytes += std::ssize(piece);
    return bytes <= limit;
  }
};

struct Pieces {
  const std::function<void(std::string_view)>& piece;
  bool add(std::string_view text) {
    piece(text);
    return true;
  }
};

}  // namespace

std::string value_text(const Catalog& catalog, const Value* value, std::size_t limit) {
  if (value == nullptr) return {};
  if (const auto numpy = as_numpy(*value)) return numpy_summary(*numpy);
  Preview preview{{}, limit};
  if (Printer<Preview>(catalog, preview).print(value)) return preview.text;
  preview.text.resize(front_of_characters(preview.text, limit));
  return preview.text + "...";
}

WholeText::WholeText(const Catalog& catalog, const Value* value) : catalog_(catalog), value_(value) {
  if (value == nullptr) return;
  const std::int64_t file_bytes = bytes_of(catalog.files);
  Count count{checked_add(kAlwaysPrinted, checked_mul(kPrintedPerByte, file_bytes))};
  if (Printer<Count>(catalog, count).print(value)) return;
  throw Error(ErrorCode::kCorruption, "cannot print the object: its text is far larger than the checkpoint")
      .because(fmt::format("the text is longer than {} bytes, the files have {}: the object repeats parts of itself",
                           count.limit, file_bytes));
}

void WholeText::print(const std::function<void(std::string_view)>& piece) const {
  if (value_ == nullptr) return;
  if (const auto numpy = as_numpy(*value_)) return piece(numpy_summary(*numpy));
  Pieces pieces{piece};
  Printer<Pieces>(catalog_, pieces).print(value_);
}

std::string foreign_tensor(const Value* value) {
  if (value == nullptr) return {};
  const std::string_view kind = torch_save::unsupported_tensor_kind(*value);
  if (kind.empty() || value->kind == ValueKind::kPersid) return std::string(kind);
  const std::string_view subclass = torch_save::tensor_subclass(*value);
  return kind == "subclass" ? fmt::format("tensor subclass, {}", subclass) : fmt::format("{} tensor", kind);
}

std::string value_type(const Value* value) {
  if (value == nullptr) return "unknown";
  if (const auto numpy = as_numpy(*value)) return numpy_type_name(*numpy);
  const std::string_view kind = torch_save::unsupported_tensor_kind(*value);
  if (kind.empty()) return std::string(type_name(*value));
  return value->kind == ValueKind::kPersid ? "torch.storage" : fmt::format("torch.Tensor ({})", kind);
}

bool is_scalar(const Value* value) {
  if (value == nullptr) return false;
  switch (value->kind) {
    case ValueKind::kNone:
    case ValueKind::kBool:
    case ValueKind::kInt:
    case ValueKind::kLong:
    case ValueKind::kFloat:
    case ValueKind::kString:
      return true;
    default:
      return false;
  }
}

void write_value(JsonWriter& json, const Value* value) {
  if (!is_scalar(value)) return json.null();
  switch (value->kind) {
    case ValueKind::kBool:
      return json.boolean(value->boolean());
    case ValueKind::kFloat:
      return json.real(value->real);
    case ValueKind::kString:
      return json.string(value->text());
    case ValueKind::kLong:
      return json.string(integer_text(value->text()));
    case ValueKind::kInt:
      if (value->number > kExactInt || value->number < -kExactInt) return json.string(std::to_string(value->number));
      return json.number(value->number);
    default:
      return json.null();
  }
}

}  // namespace shard::app
