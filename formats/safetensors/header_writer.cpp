#include "formats/safetensors/header_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "formats/safetensors/header.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/json_writer.h"
#include "libshard/core/utf8.h"

namespace shard::safetensors {

namespace {

constexpr JsonStyle kHeaderJson{JsonEscapes::kNone, true};
constexpr std::size_t kAlignment = 8;  ///< The alignment of the data's first byte, as in the reference.

std::size_t dtype_order(DType dtype) {
  const std::span<const HeaderDType> all = header_dtypes();
  return static_cast<std::size_t>(std::ranges::find(all, dtype, &HeaderDType::dtype) - all.begin());
}

void check_text(std::string_view text, const char* what) {
  if (is_utf8(text)) return;
  throw Error(ErrorCode::kUnsupported, fmt::format("cannot write safetensors: a {} is not valid UTF-8", what))
      .of_tensor(text)
      .suggest(Remedy::kRename, text);
}

void check_tensor(const Tensor& tensor) {
  check_text(tensor.name, "tensor's name");
  if (tensor.name == "__metadata__") {
    throw Error(ErrorCode::kUnsupported, "cannot write a tensor named __metadata__: safetensors reserves the name")
        .of_tensor(tensor.name)
        .suggest(Remedy::kRename, tensor.name);
  }
  if (dtype_order(tensor.dtype) == header_dtypes().size()) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot write tensor '{}': safetensors has no dtype {}",
                                                     tensor.name, dtype_name(tensor.dtype)))
        .of_tensor(tensor.name)
        .suggest(Remedy::kCast, tensor.name)
        .suggest(Remedy::kExclude, tensor.name);
  }
  if (!is_countable(tensor.shape)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("cannot write tensor '{}': the dimensions of its shape [{}] are too "
                            "large for safetensors, though it has no elements",
                            tensor.name, fmt::join(tensor.shape, ", ")))
        .of_tensor(tensor.name)
        .suggest(Remedy::kExclude, tensor.name);
  }
  if (tensor.dtype == DType::kFloat4E2m1fnX2 && tensor.shape.empty()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("cannot write tensor '{}': safetensors has no float4 without dimensions", tensor.name))
        .of_tensor(tensor.name);
  }
}

void write_entry(JsonWriter& json, const Tensor& tensor, Dims shape, std::int64_t begin, std::int64_t end) {
  json.member_name(tensor.name), json.begin_object();
  json.key("dtype"), json.string(header_dtypes()[dtype_order(tensor.dtype)].name);
  json.key("shape"), json.begin_array();
  for (int d = 0; d < shape.size(); ++d) {
    const bool doubles = tensor.dtype == DType::kFloat4E2m1fnX2 && d + 1 == shape.size();
    json.number(shape[d] * (doubles ? 2 : 1));
  }
  json.end_array();
  json.key("data_offsets"), json.begin_array(), json.number(begin), json.number(end), json.end_array();
  json.end_object();
}

void write_metadata(JsonWriter& json, const std::map<std::string, std::string>& metadata) {
  json.key("__metadata__"), json.begin_object();
  for (const auto& [key, value] : metadata) {
    check_text(key, "key of the metadata");
    check_text(value, "value of the metadata");
    json.member_name(key), json.string(value);
  }
  json.end_object();
}

/// Writes the number before the header.
void set_length(std::string& head, const std::string& file) {
  std::size_t length = head.size() - kLengthBytes;
  if (length > static_cast<std::size_t>(kMaxHeaderBytes)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("cannot write a header of {} bytes: safetensors allows {}", length, kMaxHeaderBytes))
        .in_file(file)
        .suggest(Remedy::kSpreadFiles);
  }
  for (int i = 0; i < kLengthBytes; ++i, length >>= 8) head[static_cast<std::size_t>(i)] = static_cast<char>(length);
}

}  // namespace

void check_tensors(const Catalog& target) {
  for (const Tensor& tensor : target.tensors) check_tensor(tensor);
}

std::string place_file(std::vector<OutgoingTensor>& tensors, const std::map<std::string, std::string>& metadata,
                       File& file) {
  std::ranges::stable_sort(tensors, std::ranges::greater{},
                           [](const OutgoingTensor& each) { return dtype_order(each.tensor->dtype); });
  std::string head(kLengthBytes, '\0');
  JsonWriter json(head, kHeaderJson);
  json.begin_object();
  write_metadata(json, metadata);
  std::int64_t end = 0;
  for (const OutgoingTensor& each : tensors) {
    each.storage->offset = end;
    end = checked_add(end, each.storage->bytes);
    write_entry(json, *each.tensor, each.shape, each.storage->offset, end);
  }
  json.end_object();
  head.append((kAlignment - head.size() % kAlignment) % kAlignment, ' ');
  set_length(head, file.path);
  const auto data = static_cast<std::int64_t>(head.size());
  // The header counts offsets from the start of the data, the catalog from the start of the file.
  for (const OutgoingTensor& each : tensors) each.storage->offset += data;
  file.bytes = checked_add(data, end);
  return head;
}

std::string aliases_text(const Catalog& target) {
  std::string out;
  JsonWriter json(out, kHeaderJson);
  for (const Tensor& tensor : target.tensors) {
    if (tensor.alias_of == kNoIndex) continue;
    if (out.empty()) json.begin_object();
    json.member_name(tensor.name), json.string(target.tensors[tensor.alias_of].name);
  }
  if (!out.empty()) json.end_object();
  return out;
}

}  // namespace shard::safetensors
