#include "libshard/map/passes/mapped_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

// Checks that need the bytes of a mapped source: replicas are equal, and padding is zero.

constexpr std::int64_t kMaxBlock = 1 << 20;  ///< The largest size of a read, in bytes.

/// Reads the bytes of a strided view run by run.
class ViewBlocks {
 public:
  using Sizes = std::vector<std::int64_t>;

  /// A view of the chunk from `offsets`.
  ViewBlocks(const Reader& reader, const Chunk& chunk, const Sizes& offsets)
      : strides_(chunk.strides.begin(), chunk.strides.end()) {
    const Catalog& catalog = reader.catalog();
    const StoredTensor& stored = catalog.stored[chunk.stored];
    const Storage& storage = catalog.storages[stored.storage];
    dtype_ = stored.dtype;
    first_ = chunk.first;
    for (std::size_t d = 0; d < strides_.size(); ++d) first_ += offsets[d] * strides_[d];
    begin_ = storage.offset;
    bytes_ = reader.bytes_of(stored.storage);
  }

  /// Reads from the run at an index of the outer dimensions, starting at element `from`.
  void read(std::span<const std::int64_t> outer, std::int64_t from, std::span<std::byte> to) const {
    std::int64_t at = first_ + from;
    for (std::size_t d = 0; d < outer.size(); ++d) at += outer[d] * strides_[d];
    bytes_->read_at(begin_ + checked_bytes(at, dtype_), to);
  }

  /// The number of trailing dimensions that form one run.
  static int contiguous_dims(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides) {
    std::int64_t run = 1;
    int dims = 0;
    for (std::size_t d = sizes.size(); d-- > 0; ++dims) {
      if (sizes[d] != 1 && strides[d] != run) break;
      run *= sizes[d];
    }
    return dims;
  }

  DType dtype() const { return dtype_; }

 private:
  Sizes strides_;
  DType dtype_ = DType::kUint8;
  std::int64_t first_ = 0, begin_ = 0;
  std::shared_ptr<const RandomReader> bytes_;
};

/// Calls `visit(outer, from, count)` for runs of at most kMaxBlock bytes, which begin at whole blocks of elements.
/// Stops if it returns false.
template <class Visit>
void for_each_run(const std::vector<std::int64_t>& sizes, int run_dims, DType dtype, Visit&& visit) {
  if (is_empty(sizes)) return;
  const std::span<const std::int64_t> outer_sizes =
      std::span(sizes).first(sizes.size() - static_cast<std::size_t>(run_dims));
  const std::int64_t run = checked_numel(std::span(sizes).last(static_cast<std::size_t>(run_dims)));
  const std::int64_t step = kMaxBlock / dtype_block(dtype).bytes * dtype_block(dtype).elements;
  std::vector<std::int64_t> outer(outer_sizes.size());
  do {
    for (std::int64_t from = 0; from < run; from += step) {
      if (!visit(std::span<const std::int64_t>(outer), from, std::min(step, run - from))) return;
    }
  } while (!outer.empty() && next_index<std::int64_t>(outer, outer_sizes) >= 0);
}

void check_equal(const Reader& reader, const Tensor& tensor, const Chunk& a, const Chunk& b) {
  const std::vector<std::int64_t> sizes(a.sizes.begin(), a.sizes.end()), zeros(sizes.size());
  const int run_dims = std::min(ViewBlocks::contiguous_dims(sizes, a.strides.span()),
                                ViewBlocks::contiguous_dims(sizes, b.strides.span()));
  const ViewBlocks in_a(reader, a, zeros), in_b(reader, b, zeros);
  std::vector<std::byte> of_a, of_b;
  for_each_run(
      sizes, run_dims, in_a.dtype(), [&](std::span<const std::int64_t> outer, std::int64_t from, std::int64_t count) {
        of_a.resize(static_cast<std::size_t>(checked_bytes(count, in_a.dtype())));
        of_b.resize(of_a.size());
        in_a.read(outer, from, of_a);
        in_b.read(outer, from, of_b);
        if (of_a == of_b) return true;
        const Catalog& catalog = reader.catalog();
        const auto file_of = [&](const Chunk& chunk) -> const std::string& { return catalog.file_of(chunk).path; };
        throw Error(ErrorCode::kCorruption, fmt::format("replicas of '{}' differ", tensor.name))
            .of_tensor(tensor.name)
            .in_file(file_of(b))
            .of_kind(FindingKind::kReplicaMismatch)
            .because(fmt::format("the box {} is not the same in {} and {}", to_string(Box(a.offsets, a.sizes)),
                                 file_of(a), file_of(b)));
      });
}

/// Compares replicas with the first one of the same box. \pre located
/// \throws Error kCorruption (kind replica_mismatch)  they differ
void check_replicas(const Reader& reader, const Tensor& tensor) {
  const std::span<const Chunk> chunks = reader.catalog().chunks_of(tensor);
  for (std::size_t first = 0, i = 1; i < chunks.size(); ++i) {
    const bool is_replica = chunks[i].offsets == chunks[first].offsets && chunks[i].sizes == chunks[first].sizes;
    if (!is_replica) {
      first = i;
    } else if (!is_empty(chunks[i].sizes)) {
      check_equal(reader, tensor, chunks[first], chunks[i]);
    }
  }
}

/// Reads a chunk of the tensor stored under `name`. \pre located
/// \throws Error kCorruption (kind shape_mismatch)  an element is not zero
void check_padding(const Reader& reader, std::string_view name, const Chunk& chunk) {
  const std::vector<std::int64_t> sizes(chunk.sizes.begin(), chunk.sizes.end()), zeros(sizes.size());
  const int run_dims = ViewBlocks::contiguous_dims(sizes, chunk.strides.span());
  const ViewBlocks view(reader, chunk, zeros);
  std::vector<std::byte> block;
  for_each_run(sizes, run_dims, view.dtype(),
               [&](std::span<const std::int64_t> outer, std::int64_t from, std::int64_t count) {
                 block.resize(static_cast<std::size_t>(checked_bytes(count, view.dtype())));
                 view.read(outer, from, block);
                 if (std::ranges::all_of(block, [](std::byte byte) { return byte == std::byte{0}; })) return true;
                 throw Error(ErrorCode::kCorruption, fmt::format("the padding of '{}' is not zero", name))
                     .of_tensor(name)
                     .of_kind(FindingKind::kShapeMismatch)
                     .because(fmt::format("the map defines a box of {} in it as padding", to_string(chunk.sizes)));
               });
}

}  // namespace

MappedReader::MappedReader(std::unique_ptr<Reader> inner, const ModelMap& map,
                           const std::function<bool(std::string_view)>& leaves_out)
    : inner_(std::move(inner)),
      undone_(inner_->catalog(), map, leaves_out),
      catalog_(undone_.make_catalog(inner_->catalog())),
      is_checked_(catalog_.tensors.size()),
      is_located_(inner_->catalog().tensors.size()) {
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
  for (const std::uint32_t tensor : tensors) {
    if (!is_checked_[tensor]) fresh.push_back(tensor);
    is_checked_[tensor] = true;
  }
  const std::vector<std::uint32_t> stored = undone_.stored_of(fresh);
  inner_->locate(stored);
  undone_.refresh(inner_->catalog(), fresh, catalog_);
  for (const std::uint32_t tensor : fresh) {
    if (undone_.compares_replicas(tensor)) check_replicas(*this, catalog_.tensors[tensor]);
  }
  for (const std::uint32_t tensor : stored) {
    if (!is_located_[tensor]) check_paddings(tensor);
    is_located_[tensor] = true;
  }
}

/// Checks the paddings for which the last stored tensor has now been located.
void MappedReader::check_paddings(std::uint32_t stored) {
  using Pair = std::pair<std::uint32_t, std::uint32_t>;
  for (const auto& [tensor, number] : std::ranges::equal_range(paddings_of_, stored, {}, &Pair::first)) {
    if (--unread_[number] > 0) continue;
    const UndoneMap::Padding& padding = undone_.paddings()[number];
    Arena arena;
    for (const Chunk& chunk : undone_.chunks_of(inner_->catalog(), padding, arena)) {
      check_padding(*inner_, padding.name, chunk);
    }
  }
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

}  // namespace shard
