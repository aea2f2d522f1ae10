#include "formats/dcp/item.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "formats/parts/pickle/foreign_holder.h"
#include "formats/parts/pickle/pickle.h"
#include "formats/torch/source_zip.h"
#include "libshard/core/bytes.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/findings.h"

namespace shard::dcp {
namespace {

using torch_save::TensorView;

// The largest size of everything but the elements in a zip with one tensor.
constexpr std::int64_t kFrame = 1 << 16;
constexpr std::size_t kKnownPickles = 4096;    // The number of pickles in the cache,
constexpr std::size_t kMostKnownBytes = 4096;  // and the size of the longest one.

Error not_a_tensor(const Value& value) {
  if (const std::string_view subclass = torch_save::tensor_subclass(value); !subclass.empty()) {
    return Error(ErrorCode::kUnsupported, fmt::format("the item contains a tensor subclass, {}", subclass))
        .of_kind(FindingKind::kForbiddenGlobal)
        .found(subclass)
        .because("only a subclass that wraps one plain tensor of its own shape and dtype can be read");
  }
  if (value.kind == ValueKind::kOpaque || pickle::is_foreign_holder(value)) {
    return Error(ErrorCode::kCorruption,
                 fmt::format("the item contains an object of {}, which is not on the list of allowed classes",
                             type_name(value)))
        .of_kind(FindingKind::kForbiddenGlobal)
        .found(type_name(value));
  }
  if (const std::string_view kind = torch_save::unsupported_tensor_kind(value); !kind.empty()) {
    return Error(ErrorCode::kUnsupported, fmt::format("the item contains a {} tensor", kind))
        .because("only plain tensors can be read");
  }
  return Error(ErrorCode::kCorruption, "the item does not contain a tensor")
      .found(type_name(value))
      .of_kind(FindingKind::kBadPickle);
}

// If an item is not a zip, names its likely writer in the error.
void check_signature(const RandomReader& content, std::int64_t begin, std::int64_t bytes, const Item& item) {
  std::array<std::byte, kSignatureBytes> head{};
  const std::int64_t there = std::min<std::int64_t>(head.size(), content.size() - begin);
  content.read_at(begin, std::span(head).first(static_cast<std::size_t>(std::max<std::int64_t>(0, there))));
  if (bytes >= 4 && as_text(std::span(head).first(4)) == std::string_view("PK\3\4")) return;
  if (!item.zstd && is_safetensors(head)) throw written_as_safetensors();
  throw Error(ErrorCode::kCorruption, fmt::format("the item at {} is not a torch.save zip", item.offset))
      .expected("PK\\x03\\x04")
      .found(fmt::format("{:02x} {:02x} {:02x} {:02x}", static_cast<int>(head[0]), static_cast<int>(head[1]),
                         static_cast<int>(head[2]), static_cast<int>(head[3])))
      .because("the file or .metadata was modified, or they come from different saves")
      .of_kind(FindingKind::kBadHeader);
}

}  // namespace

bool is_safetensors(std::span<const std::byte, kSignatureBytes> head) {
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 0;) length = length << 8 | std::to_integer<std::uint64_t>(head[i]);
  return length <= 100'000'000 && as_text(head.subspan(8)) == "{\"";
}

Error written_as_safetensors() {
  return Error(ErrorCode::kUnsupported, "the file was written with SerializationFormat.SAFETENSORS")
      .because(
          "its offsets in .metadata are then not offsets in the file, and chunks of one name overwrite one another")
      .hint("save it again with SerializationFormat.TORCH_SAVE or the HuggingFaceStorageWriter");
}

bool operator==(const Decoding& a, const Decoding& b) {
  const auto fields = [](const Decoding& d) {
    return std::tuple(d.item.file, d.item.offset, d.item.length, d.item.zstd, d.zstd_bytes, d.offset, d.stored_bytes,
                      d.bytes, d.deflated, d.code);
  };
  return fields(a) == fields(b);
}

std::shared_ptr<const RandomReader> decoded_view(std::shared_ptr<const RandomReader> file, const Decoding& decoding) {
  if (decoding.item.zstd) file = zstd_view(std::move(file), decoding.item, decoding.zstd_bytes);
  std::int64_t offset = decoding.offset;
  if (decoding.deflated) {
    file = decoded_view::decompressed({.file = std::move(file),
                                       .offset = std::exchange(offset, 0),
                                       .stored_bytes = decoding.stored_bytes,
                                       .bytes = decoding.bytes,
                                       .codec = decoded_view::Codec::kDeflate,
                                       .shown = fmt::format("the item at {}", decoding.item.offset)});
  }
  if (decoding.code.is_plain()) return file;
  return decoded_view::as_elements(std::move(file), offset, decoding.bytes, decoding.code);
}

OpenItem::OpenItem(const std::shared_ptr<FetchedFile>& file, const Item& item, std::int64_t limit_bytes, Arena& arena,
                   bool salvage)
    : item_(item), content_(file) {
  std::int64_t begin = item.offset, bytes = item.length;
  if (item.zstd) {
    content_ = std::make_shared<ZstdItem>(file, item, limit_bytes, arena);
    begin = 0;
    bytes = zstd_bytes_ = content_->size();
  }
  check_signature(*content_, begin, bytes, item);
  if (!salvage) {
    zip_.emplace(content_, begin, bytes);
    return;
  }
  zip::SalvagedZip salvaged = torch_save::salvage_saved_zip(content_, begin, bytes, arena, file->name());
  zip_.emplace(std::move(*salvaged.zip));
  lost_ = std::move(salvaged.lost);
}

const zip::Record& OpenItem::need(std::string_view name) const {
  const zip::Record* record = zip_->find(name);
  if (record != nullptr) return *record;
  throw Error(ErrorCode::kCorruption, fmt::format("the item has no record '{}'", name))
      .of_kind(FindingKind::kBadHeader);
}

std::vector<std::byte> OpenItem::data_pkl(Arena& arena) const { return zip_->read(need("data.pkl"), arena); }

bool OpenItem::has_storages() const {
  const std::string folder = zip_->folder() + "/data/";
  return std::ranges::any_of(zip_->records(), [&](const zip::Record& each) { return each.name.starts_with(folder); });
}

Location OpenItem::location_of(const TensorView& view) const {
  if (view.inside) throw Error(ErrorCode::kUnsupported, "the elements of the item's tensor are in its pickle");
  if (!lost_.empty() && zip_->find(fmt::format("data/{}", view.key)) == nullptr) {
    throw Error(ErrorCode::kCorruption, fmt::format("the item's {}", torch_save::why_lost(lost_, view.key)));
  }
  const zip::Record& record = need(fmt::format("data/{}", view.key));
  if (record.bytes != view.storage_bytes) {
    throw Error(ErrorCode::kCorruption,
                fmt::format("the item's record '{}' does not have the size of its storage", record.name))
        .expected(view.storage_bytes)
        .found(record.bytes)
        .of_kind(record.bytes < view.storage_bytes ? FindingKind::kTruncated : FindingKind::kShapeMismatch);
  }
  Location location;
  location.bytes = record.bytes;
  location.offset = zip_->data_offset(record);
  Decoding decoding{item_, zstd_bytes_, location.offset, record.stored_bytes, record.bytes, record.method != 0, {}};
  if (torch_save::is_big_endian(*zip_)) decoding.code.swap_bytes = decoded_view::swapped_bytes(view.storage_dtype);
  decoding.code.dtype = view.dtype;
  decoding.code.conj = view.conj;
  decoding.code.neg = view.neg;
  const bool is_coded = decoding.code.swap_bytes > 1 || view.conj || view.neg;
  if (!is_coded) location.crc32 = record.checksum();
  if (!item_.zstd && !decoding.deflated && !is_coded) return location;
  if (record.method != 0 && record.method != 8) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("the item's record '{}' is compressed with method {}", record.name, record.method))
        .of_kind(FindingKind::kBadHeader);
  }
  if (decoding.deflated || is_coded) location.offset = 0;  // The view begins with the elements.
  location.decoding = decoding;
  return location;
}

std::optional<std::vector<std::byte>> OpenItem::storage_bytes(std::string_view key, std::int64_t limit_bytes) const {
  const zip::Record* record = zip_->find(fmt::format("data/{}", key));
  if (record == nullptr || record->bytes > limit_bytes || torch_save::is_big_endian(*zip_)) return std::nullopt;
  try {
    return zip_->read(*record, limit_bytes);
  } catch (const Error& error) {
    if (!is_damage(error)) throw;
    return std::nullopt;
  }
}

ItemTensor ItemOpener::open(const std::shared_ptr<FetchedFile>& file, const Item& item, std::int64_t box_bytes) {
  const OpenItem zip(file, item, checked_add(box_bytes, kFrame), arena_, salvage_);
  const std::vector<std::byte> data_pkl = zip.data_pkl(arena_);
  const Pickled& pickled = this->pickled(as_text(data_pkl), file->name());
  TensorView view = pickled.view;
  view.key = pickled.key;
  return {view.dtype, view.shape, view.strides, view.first, zip.location_of(view)};
}

const ItemOpener::Pickled& ItemOpener::pickled(std::string_view data_pkl, const std::string& file) {
  if (const Pickled* known = known_.find(data_pkl)) return *known;
  Arena scratch(arena_.budget());
  pickle::LoadOptions options;
  options.file = file;
  options.allow = pickle::is_known_global;
  options.opaque_unknown = true;  // A tensor's wrapper may be of a class outside the list.
  const Value* root = pickle::load(scratch, std::as_bytes(std::span(data_pkl)), options);
  const std::optional<TensorView> view = torch_save::as_tensor(arena_, *root);
  if (!view) throw not_a_tensor(*root);
  Pickled pickled{*view, std::string(view->key)};
  pickled.view.location = {};  // The location points into the scratch arena.
  if (data_pkl.size() > kMostKnownBytes) return last_ = std::move(pickled);
  if (known_.size() >= kKnownPickles) known_.clear();
  return known_.try_emplace(data_pkl, std::move(pickled)).value;
}

}  // namespace shard::dcp
