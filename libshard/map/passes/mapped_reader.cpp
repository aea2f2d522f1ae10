#include "libshard/map/passes/mapped_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/catalog/quantized.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/sort_unique.h"
#include "libshard/exec/buffer_pool.h"
#include "libshard/exec/tensor_reader.h"

namespace shard {

namespace {

bool has_several_numbers(const Tensor& tensor) { return checked_numel(tensor.shape) > 1; }

bool are_same(Dims a, Dims b) { return std::ranges::equal(a, b); }

/// Whether one shape has the dimensions of the other in a different order.
bool is_turned(Dims a, Dims b) { return !are_same(a, b) && std::ranges::is_permutation(a, b); }

bool belongs_to_codes(QuantizedRole role) {
  return role == QuantizedRole::kScale || role == QuantizedRole::kSecondScale || role == QuantizedRole::kZeroPoint;
}

}  // namespace

void check_scales_follow(const Catalog& before, const Catalog& after, const std::function<bool(std::uint32_t)>& skips) {
  const QuantizedPart part = find_quantized(before);
  if (part.modules.empty()) return;
  HashMap<std::string_view, const Tensor*> by_name;
  for (const Tensor& tensor : after.tensors) by_name.try_emplace(tensor.name, &tensor);
  const auto found = [&](const Tensor& tensor) -> const Tensor* {
    const Tensor* const* const same = by_name.find(tensor.name);
    return same == nullptr ? nullptr : *same;
  };
  for (const QuantizedModule& module : part.modules) {
    if (!module.has_weight || !module.has_scales || module.form == QuantizedForm::kState) continue;
    const auto members = part.members_of(module);
    const auto weight = std::ranges::find(members, QuantizedRole::kWeight, &QuantizedMember::role);
    if (weight == members.end() || (skips && skips(weight->tensor))) continue;
    const Tensor& codes = before.tensors[weight->tensor];
    const Tensor* const same = found(codes);
    if (same != nullptr && !is_turned(codes.shape, same->shape)) continue;
    for (const QuantizedMember& member : members) {
      const Tensor& numbers = before.tensors[member.tensor];
      const Tensor* const kept = belongs_to_codes(member.role) ? found(numbers) : nullptr;
      if (kept == nullptr || !are_same(kept->shape, numbers.shape)) continue;
      if (same != nullptr && !has_several_numbers(numbers)) continue;  // One number fits the weight in any order.
      Error error(ErrorCode::kUnsupported,
                  fmt::format("cannot map '{}': no rule takes its scales '{}' with it", codes.name, numbers.name));
      if (has_formula(module.form)) error.suggest(Remedy::kDequantize);
      throw error.of_tensor(codes.name).because(fmt::format("it is quantized ({})", quantized_form_name(module.form)));
    }
  }
}

constexpr std::int64_t kCheckedBlock = 1 << 20, kCheckMemory = 16 << 20;  ///< In bytes.

/// Compares the bytes of a source's chunks, which may be stored in any order.
class ChunkChecks {
 public:
  /// \pre the reader's chunks are located
  explicit ChunkChecks(const Reader& reader) : reader_(reader) {}

  /// \pre chunks of equal sizes and dtypes
  bool are_equal(const Chunk& a, const Chunk& b) {
    begin({a, b});
    TensorReader first(catalog_, reader_, 0, progress_, throwing_findings(), &pool_);
    TensorReader other(catalog_, reader_, 1, progress_, throwing_findings(), &other_pool_);
    const Tensor& tensor = catalog_.tensors.front();
    return !first_difference(first, other, checked_numel(tensor.shape), tensor.dtype);
  }

  bool is_zero(const Chunk& chunk) {
    begin({chunk});
    TensorReader reader(catalog_, reader_, 0, progress_, throwing_findings(), &pool_);
    const Tensor& tensor = catalog_.tensors.front();
    const std::int64_t elements = checked_numel(tensor.shape);
    const std::int64_t step = std::max<std::int64_t>(8, reader.block_elements(kCheckedBlock));
    std::vector<std::byte> block;
    for (std::int64_t from = 0; from < elements; from += step) {
      const std::int64_t to = std::min(elements, from + step);
      block.resize(static_cast<std::size_t>(checked_bytes(to - from, tensor.dtype)));
      reader.read(from, to, block);
      if (!std::ranges::all_of(block, [](std::byte byte) { return byte == std::byte{0}; })) return false;
    }
    return true;
  }

 private:
  /// Replaces the tensors of the catalog by one for each chunk.
  void begin(std::initializer_list<Chunk> chunks) {
    if (catalog_.stored.empty()) {
      catalog_.files = reader_.catalog().files;
      catalog_.storages = reader_.catalog().storages;
      for (Storage& storage : catalog_.storages) storage.crc32.reset();  // CRC-32s are for reads of tensors.
      catalog_.stored = reader_.catalog().stored;
    }
    catalog_.tensors.clear();
    catalog_.chunks.clear();
    CatalogBuilder builder(catalog_);
    for (Chunk chunk : chunks) {
      chunk.offsets = catalog_.arena->zeros(chunk.sizes.size());
      builder.begin("", {}, catalog_.stored[chunk.stored].dtype, chunk.sizes);
      builder.add_chunk(chunk);
    }
  }

  const Reader& reader_;
  Catalog catalog_;
  Progress progress_;
  BufferPool pool_{kCheckMemory}, other_pool_{kCheckMemory};
};

MappedReader::MappedReader(std::unique_ptr<Reader> inner, const ModelMap& map,
                           const std::function<bool(std::string_view)>& leaves_out)
    : inner_(std::move(inner)),
      undone_(inner_->catalog(), map, leaves_out),
      catalog_(undone_.make_catalog(inner_->catalog())),
      is_checked_(catalog_.tensors.size()),
      is_located_(inner_->catalog().tensors.size()),
      is_zero_(undone_.paddings().size()) {
  const std::span<const UndoneMap::Padding> paddings = undone_.paddings();
  for (std::uint32_t i = 0; i < paddings.size(); ++i) {
    const std::vector<std::uint32_t> stored = undone_.stored_of(paddings[i]);
    unread_.push_back(static_cast<std::uint32_t>(stored.size()));
    for (const std::uint32_t tensor : stored) paddings_of_.emplace_back(tensor, i);
  }
  std::ranges::sort(paddings_of_);
}

void MappedReader::locate(std::span<const std::uint32_t> tensors) {
  std::vector<std::uint32_t> fresh;
  std::ranges::copy_if(tensors, std::back_inserter(fresh), [&](std::uint32_t tensor) { return !is_checked_[tensor]; });
  if (fresh.empty()) return;
  sort_unique(fresh);
  const std::vector<std::uint32_t> stored = undone_.stored_of(fresh);
  inner_->locate(stored);
  undone_.refresh(inner_->catalog(), fresh, catalog_);
  ChunkChecks checks(*inner_);
  for (const std::uint32_t tensor : fresh) {
    if (undone_.compares_replicas(tensor)) check_replicas(tensor, checks);
  }
  using Pair = std::pair<std::uint32_t, std::uint32_t>;
  for (const std::uint32_t tensor : stored) {
    if (is_located_[tensor]) continue;
    is_located_[tensor] = true;
    for (const Pair& place : std::ranges::equal_range(paddings_of_, tensor, {}, &Pair::first)) --unread_[place.second];
  }
  for (const std::uint32_t tensor : stored) {
    for (const Pair& place : std::ranges::equal_range(paddings_of_, tensor, {}, &Pair::first)) {
      if (unread_[place.second] == 0 && !is_zero_[place.second]) check_padding(place.second, checks);
    }
  }
  for (const std::uint32_t tensor : fresh) is_checked_[tensor] = true;
}

/// Compares replicas with the first one of the same box.
void MappedReader::check_replicas(std::uint32_t index, ChunkChecks& checks) const {
  const std::span<const Chunk> chunks = catalog_.chunks_of(catalog_.tensors[index]);
  for (std::size_t first = 0, i = 1; i < chunks.size(); ++i) {
    const Chunk &a = chunks[first], &b = chunks[i];
    if (a.offsets != b.offsets || a.sizes != b.sizes) {
      first = i;
      continue;
    }
    if (is_empty(b.sizes) || checks.are_equal(a, b)) continue;
    const std::string_view name = catalog_.tensors[index].name;
    throw Error(ErrorCode::kCorruption, fmt::format("replicas of '{}' differ", name))
        .of_tensor(name)
        .in_file(catalog_.file_of(b).path)
        .of_kind(FindingKind::kReplicaMismatch)
        .because(fmt::format("the box {} is different in {} and {}", to_string(Box(a.offsets, a.sizes)),
                             place_of(index, a), place_of(index, b)));
  }
}

/// The stored tensor that contains a chunk of a logical one, and its file.
std::string MappedReader::place_of(std::uint32_t index, const Chunk& chunk) const {
  const Catalog& inner = inner_->catalog();
  const auto contains = [&](std::uint32_t stored) {
    const std::span<const Chunk> chunks = inner.chunks_of(inner.tensors[stored]);
    return std::ranges::find(chunks, chunk.stored, &Chunk::stored) != chunks.end();
  };
  const std::vector<std::uint32_t> all = undone_.stored_of(std::span(&index, 1));
  const auto found = std::ranges::find_if(all, contains);
  const std::string& file = catalog_.file_of(chunk).path;
  return found == all.end() ? file : fmt::format("'{}' of {}", inner.tensors[*found].name, file);
}

/// Compares padding with zeros.
void MappedReader::check_padding(std::uint32_t number, ChunkChecks& checks) {
  const UndoneMap::Padding& padding = undone_.paddings()[number];
  Arena arena;
  for (const Chunk& chunk : undone_.chunks_of(inner_->catalog(), padding, arena)) {
    if (is_empty(chunk.sizes) || checks.is_zero(chunk)) continue;
    throw Error(ErrorCode::kCorruption, fmt::format("the padding of '{}' is not zero", padding.name))
        .of_tensor(padding.name)
        .of_kind(FindingKind::kShapeMismatch)
        .because(fmt::format("the map defines a box of {} in it as padding", to_string(chunk.sizes)));
  }
  is_zero_[number] = true;
}

void MappedReader::load_objects() {
  inner_->load_objects();
  catalog_.objects = inner_->catalog().objects;
  catalog_.borrowed.push_back(inner_->catalog().arena);
}

namespace {

class Zeros final : public RandomReader {
 public:
  explicit Zeros(std::int64_t bytes) : bytes_(bytes) { name_ = "<zeros>"; }
  void read_at(std::int64_t, std::span<std::byte> out) const override { std::ranges::fill(out, std::byte{0}); }
  std::int64_t size() const override { return bytes_; }

 private:
  const std::int64_t bytes_;
};

}  // namespace

PaddedReader::PaddedReader(std::unique_ptr<Reader> inner, std::span<const PaddingTensor> paddings)
    : inner_(std::move(inner)), paddings_(paddings.begin(), paddings.end()) {
  add_zeros();
}

void PaddedReader::add_zeros() {
  catalog_ = inner_->catalog();
  catalog_.arena = std::make_shared<Arena>();
  catalog_.borrowed.push_back(inner_->catalog().arena);
  first_padding_ = static_cast<std::uint32_t>(catalog_.tensors.size());
  File file;
  const auto number = static_cast<std::uint32_t>(catalog_.files.size());
  CatalogBuilder builder(catalog_);
  for (const PaddingTensor& padding : paddings_) {
    Storage storage;
    storage.offset = file.bytes;
    storage.bytes = checked_bytes(checked_numel(padding.shape), padding.dtype);
    storage.file = number;
    file.bytes = checked_add(file.bytes, storage.bytes);
    const Dims shape = catalog_.arena->dims(padding.shape.span());
    catalog_.files.resize(number + 1);
    catalog_.files.back() = file;
    builder.begin("", {}, padding.dtype, shape);
    builder.add_whole(builder.add_row_major(builder.add_storage(storage), shape, padding.dtype, -1));
  }
  zeros_ = std::make_shared<Zeros>(file.bytes);
}

void PaddedReader::locate(std::span<const std::uint32_t> tensors) {
  std::vector<std::uint32_t> own;
  std::ranges::copy_if(tensors, std::back_inserter(own), [&](std::uint32_t tensor) { return tensor < first_padding_; });
  inner_->locate(own);
  add_zeros();
}

void PaddedReader::load_objects() {
  inner_->load_objects();
  add_zeros();
}

std::shared_ptr<const RandomReader> PaddedReader::file(std::uint32_t index) const {
  return index < inner_->catalog().files.size() ? inner_->file(index) : zeros_;
}

std::shared_ptr<const RandomReader> PaddedReader::bytes_of(std::uint32_t storage) const {
  return storage < inner_->catalog().storages.size() ? inner_->bytes_of(storage) : zeros_;
}

bool PaddedReader::check_container(std::uint32_t file, ContainerReport& report) const {
  return file < inner_->catalog().files.size() && inner_->check_container(file, report);
}

}  // namespace shard
