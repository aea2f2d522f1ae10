#include "formats/safetensors/header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <utility>

#include "formats/parts/json/json_cursor.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/json_writer.h"
#include "libshard/core/parallel.h"
#include "libshard/core/utf8.h"

namespace shard::safetensors {

namespace {

constexpr std::int64_t kMaxHeaderBytes = 100'000'000;

/// The shortest text of a tensor: `"":{"dtype":"U8","shape":[],"data_offsets":[0,0]}`.
constexpr std::size_t kLeastEntryBytes = 48;

/// A long text is read in blocks of this size by several threads, which also count its objects.
constexpr std::size_t kReadBytes = std::size_t{4} << 20;

/// The order of the format's own enum, by which writers sort tensors.
constexpr std::array kOrder{
    DType::kBool,           DType::kFloat4E2m1fnX2, DType::kFloat6E2m3fn, DType::kFloat6E3m2fn,  DType::kUint8,
    DType::kInt8,           DType::kFloat8E5m2,     DType::kFloat8E4m3fn, DType::kFloat8E8m0fnu, DType::kFloat8E4m3fnuz,
    DType::kFloat8E5m2fnuz, DType::kInt16,          DType::kUint16,       DType::kFloat16,       DType::kBfloat16,
    DType::kInt32,          DType::kUint32,         DType::kFloat32,      DType::kComplex64,     DType::kFloat64,
    DType::kInt64,          DType::kUint64,
};

/// A dtype with its spelling in headers.
struct HeaderDType {
  std::string_view name;
  DType dtype;
};

constexpr auto kDTypes = [] {
  std::array<HeaderDType, kOrder.size()> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = {dtype_row(kOrder[i]).safetensors, kOrder[i]};
  return all;
}();
static_assert(std::ranges::all_of(kDTypeRows, [](const DTypeRow& row) {
  return row.safetensors.empty() == (std::ranges::find(kOrder, row.dtype) == kOrder.end());
}));

/// Whether the reference can count the elements of a shape. It multiplies from the first dimension, so a 0 only
/// prevents an overflow in later dimensions: [0, 2^40, 2^40] has 0 elements, [2^40, 2^40, 0] is too large.
bool is_countable(std::span<const std::int64_t> shape) {
  std::uint64_t product = 1;
  return std::ranges::none_of(shape, [&](std::int64_t size) {
    return size >= 0 && __builtin_mul_overflow(product, static_cast<std::uint64_t>(size), &product);
  });
}

/// The number of '{' in a text. The inner loop is short enough for a sum of one byte, so it becomes vector
/// instructions.
std::size_t count_objects(std::string_view text) {
  constexpr std::size_t kBlock = 255;
  std::size_t count = 0;
  for (; !text.empty(); text.remove_prefix(std::min(kBlock, text.size()))) {
    std::uint8_t found = 0;
    for (const char c : text.substr(0, kBlock)) found = static_cast<std::uint8_t>(found + (c == '{' ? 1 : 0));
    count += found;
  }
  return count;
}

std::uint64_t read_length(const RandomReader& file) {
  std::array<std::byte, kLengthBytes> raw;
  file.read_at(0, raw);
  std::uint64_t length = 0;
  for (std::size_t i = raw.size(); i-- > 0;) length = length << 8 | std::to_integer<std::uint64_t>(raw[i]);
  return length;
}

Error truncated(const std::string& file, const std::string& message, std::int64_t expected, std::int64_t found) {
  return Error(ErrorCode::kCorruption, message)
      .in_file(file)
      .expected(expected)
      .found(found)
      .because(fmt::format("the file is truncated ({} bytes are missing)", expected - found))
      .hint("fetch it again")
      .of_kind(FindingKind::kTruncated);
}

/// One walk over one header.
class HeaderParser {
 public:
  HeaderParser(const HeaderText& header, const std::string& file, std::int64_t file_bytes,
               std::map<std::string, std::string>& metadata, const std::function<void(const HeaderEntry&)>& entry,
               Findings& ends)
      : file_(file),
        data_begin_(kLengthBytes + header.bytes),
        data_bytes_(file_bytes - data_begin_),
        metadata_(metadata),
        on_entry_(entry),
        ends_(ends),
        json_(header.text.get(), header.text.get() + header.bytes, file, FindingKind::kBadHeader) {}

  void run() {
    json_.enter_object();
    bool is_first = true, has_metadata = false;
    std::string_view key;
    while (json_.next_name(key, name_, is_first)) {
      if (key != "__metadata__") {
        read_tensor(key);
        continue;
      }
      if (std::exchange(has_metadata, true)) json_.fail("__metadata__ appears twice");
      read_metadata();
    }
    json_.finish();
    check_ranges();
  }

 private:
  struct Fields {
    std::string_view dtype;
    std::int64_t begin = 0, end = 0;
    bool has_dtype = false, has_shape = false, has_offsets = false;
  };

  std::string text(std::string_view raw) const { return json_.has_escapes() ? json_.decode(raw) : std::string(raw); }

  void read_metadata() {
    if (json_.take_null()) return;
    json_.enter_object();
    bool is_first = true;
    std::string_view raw;
    while (json_.next_key(raw, is_first)) {
      const std::string key = text(raw);
      const std::string_view value = json_.string();
      if (!metadata_.try_emplace(key, text(value)).second) {
        throw Error(ErrorCode::kCorruption, fmt::format("__metadata__ contains the key '{}' twice", key))
            .in_file(file_)
            .of_kind(FindingKind::kDuplicateName);
      }
    }
  }

  void read_tensor(std::string_view name) {
    const Fields fields = read_fields(name);
    try {
      add_tensor(name, fields);
    } catch (Error& error) {
      throw Error(error.in_file(file_).of_tensor(name));
    }
  }

  Fields read_fields(std::string_view name) {
    Fields fields;
    json_.enter_object();
    bool is_first = true;
    std::string_view field;
    std::string decoded;
    while (json_.next_name(field, decoded, is_first)) {
      if (field == "dtype") {
        once(fields.has_dtype, name, field);
        fields.dtype = json_.string();
        if (json_.has_escapes()) fields.dtype = dtype_ = json_.decode(fields.dtype);
      } else if (field == "shape") {
        once(fields.has_shape, name, field);
        read_shape();
      } else if (field == "data_offsets") {
        once(fields.has_offsets, name, field);
        read_offsets(fields);
      } else {
        json_.skip();  // The reference skips unknown fields, because later versions may add some.
      }
    }
    if (!fields.has_dtype) fail_field(name, "dtype", "lacks");
    if (!fields.has_shape) fail_field(name, "shape", "lacks");
    if (!fields.has_offsets) fail_field(name, "data_offsets", "lacks");
    return fields;
  }

  [[noreturn]] void fail_field(std::string_view tensor, std::string_view field, const char* what) const {
    throw Error(ErrorCode::kCorruption, fmt::format("tensor '{}' {} {}", tensor, what, field))
        .in_file(file_)
        .of_tensor(tensor)
        .of_kind(FindingKind::kBadHeader);
  }

  /// Two fields of one name are an error: readers would choose differently.
  void once(bool& seen, std::string_view tensor, std::string_view field) const {
    if (std::exchange(seen, true)) fail_field(tensor, field, "has two fields");
  }

  void read_shape() {
    shape_.clear();
    json_.enter_array();
    for (bool is_first = true; json_.next_element(is_first);) shape_.push_back(json_.integer());
  }

  void read_offsets(Fields& fields) {
    json_.enter_array();
    bool is_first = true;
    if (!json_.next_element(is_first)) json_.fail("data_offsets needs two numbers");
    fields.begin = json_.integer();
    if (!json_.next_element(is_first)) json_.fail("data_offsets needs two numbers");
    fields.end = json_.integer();
    if (json_.next_element(is_first)) json_.fail("data_offsets needs two numbers");
  }

  /// \throws Error  for names that safetensors lacks. `read_tensor` adds position, file and tensor.
  DType dtype_of(std::string_view name) const {
    const auto* found = std::ranges::find(kDTypes, name, &HeaderDType::name);
    if (found != kDTypes.end()) return found->dtype;
    throw Error(ErrorCode::kCorruption, fmt::format("the dtype '{}' is not one of safetensors", name))
        .of_kind(FindingKind::kBadHeader);
  }

  /// The number of bytes of the shape. Converts the shape of F4 to torch's.
  std::int64_t size_of(DType dtype) {
    if (shape_.size() > static_cast<std::size_t>(kMaxDims)) {
      throw Error(ErrorCode::kUnsupported, fmt::format("{} dimensions, at most {} are read", shape_.size(), kMaxDims));
    }
    if (!is_countable(shape_)) {
      throw Error(ErrorCode::kCorruption, fmt::format("the dimensions of shape {} are too large", to_string(shape_)))
          .because("safetensors multiplies them in order, so a 0 does not cancel the dimensions before it")
          .of_kind(FindingKind::kBadHeader);
    }
    const std::int64_t elements = checked_numel(shape_);
    if (dtype != DType::kFloat4E2m1fnX2) return checked_bytes(elements, dtype);
    if (elements % 2 != 0) {
      throw Error(ErrorCode::kCorruption, fmt::format("{} elements of F4 end inside a byte", elements))
          .of_kind(FindingKind::kShapeMismatch);
    }
    if (shape_.empty() || shape_.back() % 2 != 0) {
      throw Error(ErrorCode::kUnsupported, fmt::format("F4 of shape {} has an odd last dimension", to_string(shape_)))
          .because("two neighbours of the last dimension share a byte");
    }
    shape_.back() /= 2;
    return elements / 2;
  }

  void add_tensor(std::string_view name, const Fields& fields) {
    const DType dtype = dtype_of(fields.dtype);
    if (fields.end < fields.begin) {
      throw Error(ErrorCode::kCorruption, fmt::format("data_offsets [{}, {}] run backwards", fields.begin, fields.end))
          .of_kind(FindingKind::kBadHeader);
    }
    const std::int64_t stored = fields.end - fields.begin;
    const std::int64_t needed = size_of(dtype);
    if (needed != stored) {
      throw Error(ErrorCode::kCorruption,
                  fmt::format("shape {} of {} takes {} bytes, data_offsets [{}, {}] have {}", to_string(shape_),
                              dtype_name(dtype), needed, fields.begin, fields.end, stored))
          .expected(needed)
          .found(stored)
          .of_kind(FindingKind::kShapeMismatch);
    }
    add_range(fields.begin, fields.end);
    on_entry_({name, dtype, shape_, checked_add(data_begin_, fields.begin), stored});
  }

  /// Joins consecutive ranges. A header from the reference then has a single range.
  void add_range(std::int64_t begin, std::int64_t end) {
    if (!ranges_.empty() && ranges_.back().second == begin) {
      ranges_.back().second = end;
    } else {
      ranges_.emplace_back(begin, end);
    }
  }

  /// Checks that, sorted by offset, ranges are adjacent, and the last ends at the file's end.
  void check_ranges() {
    if (!std::ranges::is_sorted(ranges_)) std::ranges::sort(ranges_);
    std::int64_t at = 0;
    for (const auto& [begin, end] : ranges_) {
      if (begin > at)
        fail_range(FindingKind::kGap, fmt::format("bytes [{}, {}) of the data belong to no tensor", at, begin));
      if (begin < at) fail_range(FindingKind::kOverlap, fmt::format("two tensors contain byte {} of the data", begin));
      at = end;
    }
    const std::string what = fmt::format("the header describes {} bytes of data, but the file has {}", at, data_bytes_);
    if (at > data_bytes_) ends_.report(truncated(file_, what, at, data_bytes_));
    if (at < data_bytes_) {
      ends_.report(
          Error(ErrorCode::kCorruption, what)
              .in_file(file_)
              .expected(at)
              .found(data_bytes_)
              .because(fmt::format("{} bytes at the end of the file do not belong to a tensor", data_bytes_ - at))
              .of_kind(FindingKind::kGap));
    }
  }

  [[noreturn]] void fail_range(FindingKind kind, const std::string& what) const {
    throw Error(ErrorCode::kCorruption, what).in_file(file_).of_kind(kind);
  }

  const std::string& file_;
  std::int64_t data_begin_, data_bytes_;
  std::map<std::string, std::string>& metadata_;
  const std::function<void(const HeaderEntry&)>& on_entry_;
  Findings& ends_;
  JsonCursor json_;
  std::string name_, dtype_;         ///< Decoded texts.
  std::vector<std::int64_t> shape_;  ///< The shape of the tensor being read.
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges_;
};

/// Whether the file may begin with a header of `length` bytes. \pre it has more than kLengthBytes bytes
bool has_header(const RandomReader& file, std::uint64_t length) {
  if (length == 0 || length > static_cast<std::uint64_t>(file.size() - kLengthBytes)) return false;
  std::byte first;
  file.read_at(kLengthBytes, {&first, 1});
  return first == std::byte{'{'};
}

Error too_long(const RandomReader& file, const std::string& shown, std::uint64_t length) {
  Error error(ErrorCode::kCorruption,
              fmt::format("the header's length is {} bytes, at most {} are allowed", length, kMaxHeaderBytes));
  error.in_file(shown)
      .expected(fmt::format("at most {}", kMaxHeaderBytes))
      .found(std::to_string(length))
      .of_kind(FindingKind::kBadHeader);
  if (!has_header(file, length)) return error.because("this is not a safetensors file, or its first bytes are damaged");
  return error.because("safetensors limits the header, so its own library does not open this file either")
      .hint("save it with shorter names and metadata, or as several files with an index");
}

}  // namespace

HeaderText read_header_text(const RandomReader& file, const std::string& shown, int threads, Arena& arena) {
  if (file.size() < kLengthBytes) {
    throw truncated(shown, fmt::format("the file has only {} bytes; the header length needs 8", file.size()),
                    kLengthBytes, file.size());
  }
  const std::uint64_t length = read_length(file);
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes)) throw too_long(file, shown, length);
  const auto bytes = static_cast<std::int64_t>(length);
  if (bytes > file.size() - kLengthBytes) {
    throw truncated(shown, fmt::format("header ends at byte {}, file at {}", kLengthBytes + bytes, file.size()),
                    kLengthBytes + bytes, file.size());
  }
  const auto size = static_cast<std::size_t>(bytes);
  char first = 0;
  if (size > 0) file.read_at(kLengthBytes, std::as_writable_bytes(std::span(&first, 1)));
  if (first != '{') {
    throw Error(ErrorCode::kCorruption, "header does not begin with '{'")
        .in_file(shown)
        .of_kind(FindingKind::kBadHeader);
  }
  std::unique_ptr<char[]> text = std::make_unique_for_overwrite<char[]>(size + 1);
  std::atomic<std::size_t> objects{0};
  for_each_index((size + kReadBytes - 1) / kReadBytes, threads, [&](std::size_t i) {
    const std::size_t begin = i * kReadBytes;
    const std::span block(text.get() + begin, std::min(kReadBytes, size - begin));
    file.read_at(kLengthBytes + static_cast<std::int64_t>(begin), std::as_writable_bytes(block));
    objects += count_objects({block.data(), block.size()});
  });
  text[size] = '\0';
  arena.earn(file.allocated_bytes(0, bytes));
  return {std::move(text), bytes, std::min(size / kLeastEntryBytes, objects.load())};
}

void parse_header(const HeaderText& header, const std::string& file, std::int64_t file_bytes,
                  std::map<std::string, std::string>& metadata, const std::function<void(const HeaderEntry&)>& entry,
                  Findings& ends) {
  HeaderParser(header, file, file_bytes, metadata, entry, ends).run();
}

bool looks_like_header(const RandomReader& file) {
  if (file.size() <= kLengthBytes) return false;
  const std::uint64_t length = read_length(file);
  return length <= static_cast<std::uint64_t>(kMaxHeaderBytes) && has_header(file, length);
}

namespace {

constexpr JsonStyle kHeaderJson{JsonEscapes::kNone, true};
constexpr std::size_t kAlignment = 8;  ///< The alignment of the data's first byte, as in the reference.

std::size_t dtype_order(DType dtype) {
  return static_cast<std::size_t>(std::ranges::find(kDTypes, dtype, &HeaderDType::dtype) - kDTypes.begin());
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
  if (dtype_order(tensor.dtype) == kDTypes.size()) {
    Error error(ErrorCode::kUnsupported, fmt::format("cannot write tensor '{}': safetensors has no dtype {}",
                                                     tensor.name, dtype_name(tensor.dtype)));
    if (is_castable(tensor.dtype)) error.suggest(Remedy::kCast, tensor.name);
    throw error.of_tensor(tensor.name).suggest(Remedy::kExclude, tensor.name);
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
  json.key("dtype"), json.string(kDTypes[dtype_order(tensor.dtype)].name);
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
