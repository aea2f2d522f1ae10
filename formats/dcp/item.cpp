#include "formats/dcp/item.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/pickle/pickle.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::dcp {
namespace {

constexpr std::int64_t kWholeItem = 8192;       // Items up to this size are fetched whole,
constexpr std::int64_t kWindow = 4096;          // of larger ones this much of the front and of the end,
constexpr std::int64_t kFetch = 1 << 20;        // this much at a time,
constexpr std::int64_t kBridge = 4096;          // and gaps up to this size are read rather than skipped.
constexpr std::int64_t kPickleLimit = 1 << 30;  // No pickle is believed to be larger.
constexpr std::size_t kKnownPickles = 4096;

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const zip::Record& need(const zip::ZipReader& zip, std::string_view name) {
  const zip::Record* record = zip.find(name);
  if (record == nullptr) {
    throw Error(ErrorCode::kCorruption, fmt::format("the item has no record '{}'", name)).of_kind("bad_header");
  }
  return *record;
}

void check_byte_order(const zip::ZipReader& zip) {
  const zip::Record* record = zip.find("byteorder");
  if (record == nullptr) return;  // Before torch 2.1: little.
  const std::vector<std::byte> order = zip.read(*record, 64);
  if (as_text(order) == "little") return;
  if (as_text(order) == "big") throw Error(ErrorCode::kUnsupported, "the item is big-endian");
  throw Error(ErrorCode::kCorruption, "the item's byteorder is neither little nor big")
      .found(as_text(order))
      .of_kind("bad_header");
}

Error not_a_tensor(const Value& value) {
  if (const std::string_view kind = torch_save::unsupported_tensor_kind(value); !kind.empty()) {
    return Error(ErrorCode::kUnsupported, fmt::format("the item holds a {}", kind))
        .because("only plain tensors can be read");
  }
  return Error(ErrorCode::kCorruption, "the item holds no tensor").found(type_name(value)).of_kind("bad_pickle");
}

pickle::LoadOptions load_options(const std::string& file) {
  pickle::LoadOptions options;
  options.file = file;
  options.allow = pickle::is_known_global;
  return options;
}

// An item that is not a zip: what may have written it?
void check_signature(const FetchedFile& file, const Item& item) {
  std::byte head[4]{};
  file.read_at(item.offset, std::span(head).first(static_cast<std::size_t>(std::min<std::int64_t>(4, item.length))));
  if (as_text(head) == std::string_view("PK\3\4")) return;
  throw Error(ErrorCode::kCorruption, fmt::format("the item at {} is no torch.save zip", item.offset))
      .expected("PK\\x03\\x04")
      .found(fmt::format("{:02x} {:02x} {:02x} {:02x}", static_cast<int>(head[0]), static_cast<int>(head[1]),
                         static_cast<int>(head[2]), static_cast<int>(head[3])))
      .because("the file was changed, or written with SerializationFormat.SAFETENSORS")
      .of_kind("bad_header");
}

// Puts an opaque value in the place of every tensor, so that no writer takes the object for complete.
void hide_tensors(Arena& arena, Value& value, int depth, std::int64_t& visits) {
  if (depth > kMaxValueDepth || ++visits > kMaxValueVisits) {
    throw Error(ErrorCode::kCorruption, "the object is nested too deeply").of_kind("bad_pickle");
  }
  const bool is_tensor = torch_save::as_tensor(arena, value) || !torch_save::unsupported_tensor_kind(value).empty();
  if (is_tensor || value.kind == ValueKind::kPersid) {
    Value opaque;
    opaque.kind = ValueKind::kOpaque;
    opaque.module = "torch";
    opaque.text = "Tensor";
    value = opaque;
    return;
  }
  for (Value* item : value.items) hide_tensors(arena, *item, depth + 1, visits);
  if (value.extra == nullptr) return;
  for (Value* item : value.extra->list_items) hide_tensors(arena, *item, depth + 1, visits);
  for (Value* item : value.extra->dict_items) hide_tensors(arena, *item, depth + 1, visits);
  if (value.extra->state != nullptr) hide_tensors(arena, *value.extra->state, depth + 1, visits);
}

}  // namespace

FetchedFile::FetchedFile(std::shared_ptr<const RandomReader> file) : file_(std::move(file)) { name_ = file_->name(); }

std::size_t FetchedFile::fetch(std::span<const Item> items) {
  parts_.clear();
  std::size_t bytes = 0, taken = 0;
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    if (!parts_.empty() && begin - parts_.back().end <= kBridge) {
      const std::int64_t more = std::max<std::int64_t>(0, end - parts_.back().end);
      parts_.back().end += more;
      bytes += static_cast<std::size_t>(more);
    } else {
      parts_.push_back({begin, end, bytes});
      bytes += static_cast<std::size_t>(end - begin);
    }
  };
  while (taken < items.size() && (taken == 0 || bytes < static_cast<std::size_t>(kFetch))) {
    const Item& item = items[taken++];
    const std::int64_t end = item.offset + item.length;
    if (item.length <= kWholeItem) {
      add(item.offset, end);
    } else {
      add(item.offset, item.offset + kWindow);
      add(end - kWindow, end);
    }
  }
  if (memory_.size() < bytes) memory_.resize(bytes);
  for (const Part& part : parts_) {
    file_->read_at(part.begin, std::span(memory_).subspan(part.at, static_cast<std::size_t>(part.end - part.begin)));
  }
  return taken;
}

std::span<const std::byte> FetchedFile::view(std::int64_t offset, std::int64_t bytes) const {
  const auto after = std::upper_bound(parts_.begin(), parts_.end(), offset,
                                      [](std::int64_t wanted, const Part& part) { return wanted < part.begin; });
  if (after == parts_.begin()) return {};
  const Part& part = *(after - 1);
  if (offset + bytes > part.end) return {};
  return std::span(memory_).subspan(part.at + static_cast<std::size_t>(offset - part.begin),
                                    static_cast<std::size_t>(bytes));
}

void FetchedFile::read_at(std::int64_t offset, std::span<std::byte> out) const {
  const std::span<const std::byte> found = view(offset, static_cast<std::int64_t>(out.size()));
  if (found.size() == out.size()) {
    std::copy(found.begin(), found.end(), out.begin());
  } else {
    file_->read_at(offset, out);
  }
}

ItemTensor ItemOpener::open(const std::shared_ptr<FetchedFile>& file, const Item& item) {
  check_signature(*file, item);
  const zip::ZipReader zip(file, item.offset, item.length);
  const std::vector<std::byte> data_pkl = zip.read(need(zip, "data.pkl"), kPickleLimit);
  const Pickled& pickled = this->pickled(as_text(data_pkl), file->name());
  check_byte_order(zip);
  const zip::Record& record = need(zip, pickled.record);
  if (record.method != 0) throw Error(ErrorCode::kUnsupported, "the item's tensor is compressed");
  if (record.bytes < pickled.tensor.data_bytes) {
    throw Error(ErrorCode::kCorruption, fmt::format("the item's record '{}' is shorter than its storage", record.name))
        .expected(pickled.tensor.data_bytes)
        .found(record.bytes)
        .of_kind("truncated");
  }
  ItemTensor tensor = pickled.tensor;
  tensor.data_begin = zip.data_offset(record);
  return tensor;
}

const ItemOpener::Pickled& ItemOpener::pickled(std::string_view data_pkl, const std::string& file) {
  if (const auto found = known_.find(data_pkl); found != known_.end()) return found->second;
  if (known_.size() >= kKnownPickles) known_.clear();
  Arena scratch;
  const Value* root = pickle::load(scratch, std::as_bytes(std::span(data_pkl)), load_options(file));
  const std::optional<torch_save::TensorView> view = torch_save::as_tensor(arena_, *root);
  if (!view) throw not_a_tensor(*root);
  if (view->conj || view->neg) {
    throw Error(ErrorCode::kUnsupported, "the item's tensor is a conjugated or negated view")
        .hint("save tensor.resolve_conj().resolve_neg()");
  }
  Pickled pickled;
  pickled.tensor = {view->dtype, view->shape, view->strides, view->first, 0, view->storage_bytes};
  pickled.record = "data/" + std::string(view->key);
  return known_.emplace(std::string(data_pkl), std::move(pickled)).first->second;
}

Value* load_object(Arena& arena, const std::shared_ptr<FetchedFile>& file, const Item& item) {
  check_signature(*file, item);
  const zip::ZipReader zip(file, item.offset, item.length);
  const auto data_pkl = std::make_shared<const std::vector<std::byte>>(zip.read(need(zip, "data.pkl"), kPickleLimit));
  arena.adopt(data_pkl);
  Value* root = pickle::load(arena, *data_pkl, load_options(file->name()));
  std::int64_t visits = 0;
  hide_tensors(arena, *root, 0, visits);
  return root;
}

}  // namespace shard::dcp
