#include "formats/safetensors/header_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>

#include "formats/parts/json/json_text.h"
#include "formats/safetensors/header.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::safetensors {

namespace {

constexpr std::size_t kAlignment = 8;  ///< The data's first byte is aligned so, as the reference does.

std::size_t dtype_order(DType dtype) {
  const std::span<const HeaderDType> all = header_dtypes();
  return static_cast<std::size_t>(std::ranges::find(all, dtype, &HeaderDType::dtype) - all.begin());
}

void check_text(std::string_view text, const char* what) {
  if (simdjson::validate_utf8(text.data(), text.size())) return;
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

void append_entry(std::string& out, const Tensor& tensor, Dims shape, std::int64_t begin, std::int64_t end) {
  json::append_string(out, tensor.name, false);
  fmt::format_to(std::back_inserter(out), ":{{\"dtype\":\"{}\",\"shape\":[",
                 header_dtypes()[dtype_order(tensor.dtype)].name);
  for (int d = 0; d < shape.size(); ++d) {
    const bool doubles = tensor.dtype == DType::kFloat4E2m1fnX2 && d + 1 == shape.size();
    fmt::format_to(std::back_inserter(out), "{}{}", d == 0 ? "" : ",", shape[d] * (doubles ? 2 : 1));
  }
  fmt::format_to(std::back_inserter(out), "],\"data_offsets\":[{},{}]}}", begin, end);
}

std::string metadata_text(const std::map<std::string, std::string>& metadata) {
  std::string out = "\"__metadata__\":{";
  for (const auto& [key, value] : metadata) {
    check_text(key, "key of the metadata");
    check_text(value, "value of the metadata");
    if (out.back() != '{') out += ',';
    json::append_string(out, key, false);
    out += ':';
    json::append_string(out, value, false);
  }
  return out + '}';
}

/// The number in front of the header.
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
  head.append("{").append(metadata_text(metadata));
  std::int64_t end = 0;
  for (const OutgoingTensor& each : tensors) {
    each.storage->offset = end;
    end = checked_add(end, each.storage->bytes);
    head += ',';
    append_entry(head, *each.tensor, each.shape, each.storage->offset, end);
  }
  head += '}';
  head.append((kAlignment - head.size() % kAlignment) % kAlignment, ' ');
  set_length(head, file.path);
  const auto data = static_cast<std::int64_t>(head.size());
  for (const OutgoingTensor& each : tensors) each.storage->offset += data;
  file.bytes = checked_add(data, end);
  return head;
}

std::string aliases_text(const Catalog& target) {
  std::string out;
  for (const Tensor& tensor : target.tensors) {
    if (tensor.alias_of == kNoIndex) continue;
    out += out.empty() ? '{' : ',';
    json::append_string(out, tensor.name, false);
    out += ':';
    json::append_string(out, target.tensors[tensor.alias_of].name, false);
  }
  return out.empty() ? out : out + '}';
}

}  // namespace shard::safetensors
