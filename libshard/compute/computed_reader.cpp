#include "libshard/compute/computed_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <span>
#include <utility>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/catalog/originals.h"
#include "libshard/catalog/tree.h"
#include "libshard/compute/rounded_rows.h"
#include "libshard/compute/unpack.h"
#include "libshard/compute/values.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/sort_unique.h"
#include "libshard/exec/cast.h"

namespace shard {

namespace {

/// The elements of a formula, computed as they are read.
class ComputedBytes final : public RandomReader {
 public:
  ComputedBytes(const Formula& formula, DType dtype, Readers readers)
      : formula_(formula),
        dtype_(dtype),
        values_(open_values(formula.value, readers)),
        bytes_(checked_bytes(checked_numel(formula.shape), dtype)) {
    name_ = formula.name;
  }

  std::int64_t size() const override { return bytes_; }
  std::int64_t take_overflows() const override {
    const std::scoped_lock lock(mutex_);
    return std::exchange(overflows_, 0);
  }

  void read_at(std::int64_t offset, std::span<std::byte> out) const override try {
    const std::scoped_lock lock(mutex_);
    const std::int64_t element = element_bytes(dtype_), end = offset + std::ssize(out);
    if (offset < 0 || end > bytes_) throw file_too_short(name_, bytes_, end);
    const std::int64_t first = ceil_div(offset, element), last = end / element;
    if (first > last) return read_part(last, offset - last * element, out);
    const auto head = static_cast<std::size_t>(first * element - offset);
    if (head > 0) read_part(first - 1, element - static_cast<std::int64_t>(head), out.first(head));
    const auto whole = static_cast<std::size_t>((last - first) * element);
    read_elements(first, last, out.subspan(head, whole));
    if (head + whole < out.size()) read_part(last, 0, out.subspan(head + whole));
  } catch (Error& error) {
    if (error.tensor().empty()) error.of_tensor(formula_.name);
    throw;
  }

 private:
  /// Bytes of one element, from `skipped` on.
  void read_part(std::int64_t element, std::int64_t skipped, std::span<std::byte> out) const {
    std::array<std::byte, 16> whole;
    const auto bytes = static_cast<std::size_t>(element_bytes(dtype_));
    read_elements(element, element + 1, std::span(whole).first(bytes));
    std::copy_n(whole.data() + skipped, out.size(), out.data());
  }

  void read_elements(std::int64_t begin, std::int64_t end, std::span<std::byte> out) const {
    if (formula_.packed_bits > 0) return read_words(begin, end, out);
    const auto bytes_of = [this](std::int64_t elements) {
      return static_cast<std::size_t>(elements * element_bytes(dtype_));
    };
    while (begin < end) {
      const std::int64_t taken = values_->take(begin, end);
      const std::span<std::byte> part = out.first(bytes_of(taken - begin));
      if (!round_directly(begin, part)) {
        values_->compute_range(begin, taken, [&](std::int64_t at, std::span<float> values) {
          round(values, part.subspan(bytes_of(at - begin), bytes_of(std::ssize(values))));
        });
      }
      out = out.subspan(part.size());
      begin = taken;
    }
  }

  /// Packs the codes of whole words.
  void read_words(std::int64_t begin, std::int64_t end, std::span<std::byte> out) const {
    const std::int64_t per_word = kPackedWordBits / formula_.packed_bits;
    std::array<float, Values::kBlock> block;
    while (begin < end) {
      // Ranges are far longer than a word. The values of a part of one are taken again with the next range.
      const std::int64_t taken = values_->take(begin * per_word, end * per_word) / per_word;
      while (begin < taken) {
        const std::int64_t count = std::min(Values::kBlock / per_word, taken - begin);
        const std::span<float> codes = std::span(block).first(static_cast<std::size_t>(count * per_word));
        values_->compute(begin * per_word, codes);
        pack_words(codes, formula_.packed_bits, out.first(static_cast<std::size_t>(count * kPackedWordBits / 8)));
        out = out.subspan(static_cast<std::size_t>(count * kPackedWordBits / 8));
        begin += count;
      }
    }
  }

  void pack_words(std::span<const float> codes, int bits, std::span<std::byte> out) const {
    const std::size_t per_word = static_cast<std::size_t>(kPackedWordBits / bits);
    for (std::size_t i = 0; i < codes.size(); i += per_word) {
      std::uint32_t word = 0;
      for (std::size_t k = 0; k < per_word; ++k) {
        if (std::isnan(codes[i + k])) {
          throw Error(ErrorCode::kUnsupported, fmt::format("cannot pack '{}': a value is NaN", formula_.name))
              .of_tensor(formula_.name);
        }
        const int code = static_cast<int>(codes[i + k]) + (1 << (bits - 1));
        word |= static_cast<std::uint32_t>(code) << (k * static_cast<std::size_t>(bits));
      }
      std::memcpy(out.data() + i / per_word * sizeof word, &word, sizeof word);
    }
  }

  bool round_directly(std::int64_t begin, std::span<std::byte> out) const {
    return dtype_ == DType::kBfloat16 && values_->compute_bfloat16(begin, formula_.through_float16, out);
  }

  void round(std::span<float> values, std::span<std::byte> out) const {
    if (formula_.through_float16 && dtype_ != DType::kFloat16) round_to_float16(values);
    if (dtype_ == DType::kBfloat16) return round_to_bfloat16(values, out);
    overflows_ += cast(DType::kFloat32, std::as_bytes(values), dtype_, out);
  }

  const Formula& formula_;
  DType dtype_;
  std::unique_ptr<Values> values_;
  std::int64_t bytes_;
  mutable std::mutex mutex_;
  mutable std::int64_t overflows_ = 0;
};

/// A box of a computed tensor that one rank stores.
struct ComputedPart {
  std::vector<std::int64_t> offsets, sizes;
  std::int64_t first = 0;  ///< The element of the expression at its first corner.
  std::int32_t rank = -1;
};

/// The boxes of a computed tensor that ranks store.
struct ComputedParts {
  std::vector<ComputedPart> parts;
  bool is_like_operand = false;  ///< The boxes are those of the operand.
};

/// The dimensions of a formula's tensor in the order of the expression.
std::vector<std::size_t> dims_in_order(const Formula& formula) {
  std::vector<std::size_t> dims(formula.shape.size());
  std::iota(dims.begin(), dims.end(), std::size_t{0});
  std::ranges::stable_sort(dims, std::greater(), [&](std::size_t dim) { return formula.strides[dim]; });
  return dims;
}

/// Words that are packed down the rows have codes of several rows, so only whole rows are read together.
bool is_packed_down(const Formula& formula) {
  const auto* const codes = std::get_if<ScaledCodes>(&formula.value.node);
  return codes != nullptr && codes->codes.packing == Packing::kDownColumn;
}

/// The boxes of the tensor that the operand's chunks provide. The two shapes imply how many elements of the tensor
/// belong to an element of the operand in each dimension. One whole box if they do not.
ComputedParts parts_of(const Formula& formula, const Catalog& inner, const Tensor& operand) {
  const std::size_t dims = formula.shape.size();
  const ComputedParts whole{{{std::vector<std::int64_t>(dims), formula.shape}}, false};
  if (operand.chunk_count < 2 || std::cmp_not_equal(operand.shape.size(), dims)) return whole;
  const std::vector<std::size_t> order = dims_in_order(formula);
  ComputedParts found{{}, true};
  for (const Chunk& chunk : inner.chunks_of(operand)) {
    ComputedPart part{.offsets = std::vector<std::int64_t>(dims), .sizes = formula.shape};
    part.rank = inner.stored_of(chunk).rank;
    for (std::size_t i = 0; i < dims; ++i) {
      const std::size_t dim = order[i];
      const auto at = static_cast<int>(i);
      const std::int64_t stored = operand.shape[at], all = formula.shape[dim];
      found.is_like_operand = found.is_like_operand && dim == i && stored == all;
      if (chunk.sizes[at] == stored) continue;
      if (stored == 0 || all % stored != 0 || (at > 0 && is_packed_down(formula))) return whole;
      part.offsets[dim] = chunk.offsets[at] * (all / stored);
      part.sizes[dim] = chunk.sizes[at] * (all / stored);
      part.first += part.offsets[dim] * formula.strides[dim];
    }
    if (std::ranges::find(part.sizes, 0) != part.sizes.end()) part.first = 0;
    found.parts.push_back(std::move(part));
  }
  return found;
}

}  // namespace

ComputedReader::ComputedReader(std::vector<std::unique_ptr<Reader>> readers, Computation computation)
    : readers_(std::move(readers)),
      formulas_(std::move(computation.formulas)),
      keeps_object_(std::move(computation.keeps_object)) {
  const Catalog& first = readers_.front()->catalog();
  catalog_ = first;
  catalog_.arena = std::make_shared<Arena>();
  catalog_.root = nullptr;
  catalog_.originals = nullptr;
  catalog_.objects.clear();  // They have no part in the checks below.
  catalog_.metadata.erase(kAliasesNote);
  catalog_.warnings.insert(catalog_.warnings.end(), computation.warnings.begin(), computation.warnings.end());
  for (const std::unique_ptr<Reader>& reader : readers_) {
    const Catalog& other = reader->catalog();
    catalog_.borrowed.push_back(other.arena);
    const bool is_first = first_file_.empty();
    const std::uint32_t before = is_first ? 0 : first_file_.back();
    first_file_.push_back(is_first || other.files.empty() ? before : static_cast<std::uint32_t>(catalog_.files.size()));
    if (!is_first) catalog_.files.insert(catalog_.files.end(), other.files.begin(), other.files.end());
  }
  std::vector<bool> is_dropped(first.tensors.size());
  for (const std::uint32_t tensor : computation.dropped) is_dropped[tensor] = true;
  // validate_catalog sorts the tensors. Until then, `source` is the index of a tensor of the first reader, or that of a
  // formula plus the number of those tensors.
  catalog_.tensors.clear();
  for (std::uint32_t i = 0; i < first.tensors.size(); ++i) {
    if (is_dropped[i]) continue;
    catalog_.tensors.push_back(first.tensors[i]);
    catalog_.tensors.back().alias_of = kNoIndex;
    catalog_.tensors.back().source = i;
  }
  first_storage_ = static_cast<std::uint32_t>(first.storages.size());
  for (std::uint32_t i = 0; i < formulas_.size(); ++i) add_formula(formulas_[i], i);
  validate_catalog(catalog_);
  for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
    Tensor& tensor = catalog_.tensors[i];
    const auto own = static_cast<std::uint32_t>(first.tensors.size());
    inner_.push_back(tensor.source < own ? tensor.source : kNoIndex);
    formula_.push_back(tensor.source < own ? kNoIndex : tensor.source - own);
    tensor.source = kNoIndex;
    if (i > 0 && tensor.name == catalog_.tensors[i - 1].name && tensor.rank == catalog_.tensors[i - 1].rank &&
        (formula_[i] != kNoIndex || formula_[i - 1] != kNoIndex)) {
      throw Error(ErrorCode::kCorruption, fmt::format("tensor '{}' exists twice, once to be computed", tensor.name))
          .of_tensor(tensor.name)
          .of_kind(FindingKind::kBadHeader);
    }
  }
  take_objects();
}

void ComputedReader::check(const Formula& formula) const {
  for (const Leaf& leaf : leaves_of(formula.value)) {
    const Tensor& tensor = readers_[leaf.reader]->catalog().tensors[leaf.tensor];
    if (tensor.rank < 0) continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("'{}' cannot be computed: '{}' differs between ranks", formula.name, tensor.name))
        .of_tensor(tensor.name);
  }
}

void ComputedReader::add_formula(const Formula& formula, std::uint32_t number) {
  check(formula);
  const Leaf main = leaves_of(formula.value).front();
  const Catalog& inner = readers_[main.reader]->catalog();
  const Tensor& like = inner.tensors[main.tensor];
  Storage storage;
  storage.offset = 0;
  storage.bytes = checked_bytes(checked_numel(formula.shape), formula.dtype);
  storage.file = first_file_[main.reader] + (like.chunk_count > 0 ? inner.storage_of(like).file : 0);
  storage.plain = false;
  const std::uint32_t added = CatalogBuilder(catalog_).add_storage(storage);
  add_tensor(formula, formula.name, added, number);
  for (const std::string& alias : formula.aliases) add_tensor(formula, alias, added, number);
}

void ComputedReader::add_tensor(const Formula& formula, const std::string& name, std::uint32_t storage,
                                std::uint32_t number) {
  const std::vector<Leaf> leaves = leaves_of(formula.value);
  const Catalog& inner = readers_[leaves.front().reader]->catalog();
  const Tensor& like = inner.tensors[leaves.front().tensor];
  const Tensor* const namesake = inner.find(name);
  const Dims strides = catalog_.arena->dims(formula.strides);
  CatalogBuilder builder(catalog_);
  builder.begin(name, namesake != nullptr ? namesake->path : Path(), formula.dtype,
                catalog_.arena->dims(formula.shape));
  const ComputedParts parts = parts_of(formula, inner, like);
  // The Python object of the same name in the tree, see take_tree.
  const StoredTensor* const object =
      namesake != nullptr && namesake->chunk_count > 0 ? &inner.stored_of(*namesake) : nullptr;
  for (const ComputedPart& part : parts.parts) {
    StoredTensor stored;
    stored.shape = catalog_.arena->dims(part.sizes);
    stored.strides = strides;
    stored.first = part.first;
    stored.storage = storage;
    stored.rank = part.rank;
    stored.dtype = formula.dtype;
    stored.requires_grad = object != nullptr && object->requires_grad;
    stored.has_attributes = object != nullptr && object->has_attributes;
    builder.add_chunk(builder.add_stored(stored), part.offsets, part.sizes, strides, part.first);
  }
  Tensor& tensor = builder.tensor();
  const bool is_of_first = first_file_[leaves.front().reader] == 0;
  if (parts.is_like_operand && is_of_first) tensor.sharding = like.sharding;
  tensor.source = static_cast<std::uint32_t>(readers_.front()->catalog().tensors.size()) + number;
  for (const Leaf& leaf : leaves) {
    tensor.damaged = tensor.damaged || readers_[leaf.reader]->catalog().tensors[leaf.tensor].damaged;
  }
}

void ComputedReader::take_objects() {
  catalog_.objects = readers_.front()->catalog().objects;
  if (keeps_object_) std::erase_if(catalog_.objects, [this](const Object& each) { return !keeps_object_(each); });
  take_tree();
}

/// Takes the first reader's container tree and the original content of its objects, if each tensor has a place in it.
void ComputedReader::take_tree() {
  const Catalog& first = readers_.front()->catalog();
  catalog_.root = nullptr;
  catalog_.originals = nullptr;
  const auto has_place = [&](const Tensor& tensor) { return first.find(tensor.name) != nullptr; };
  if (!std::ranges::all_of(catalog_.tensors, has_place)) return;
  // Kept tensors would stay those of the first reader.
  if (first.originals != nullptr && first.originals->kept.empty()) catalog_.originals = first.originals;
  if (first.root == nullptr) return;
  std::vector<TreeEntry> entries;
  entries.reserve(catalog_.tensors.size() + catalog_.objects.size());
  for (const Tensor& tensor : catalog_.tensors) {
    entries.push_back({tensor.name, tensor.path, static_cast<std::uint32_t>(entries.size()), nullptr});
  }
  for (const Object& object : catalog_.objects) entries.push_back({object.name, object.path, kNoIndex, object.value});
  catalog_.root = prune_tree(*catalog_.arena, *first.root, entries);
}

std::vector<std::uint32_t> ComputedReader::files_of(std::size_t formula) const {
  std::vector<std::uint32_t> files;
  for (const Leaf& leaf : leaves_of(formulas_[formula].value)) {
    const Catalog& inner = readers_[leaf.reader]->catalog();
    for (const Chunk& chunk : inner.chunks_of(inner.tensors[leaf.tensor])) {
      files.push_back(first_file_[leaf.reader] + inner.storages[inner.stored[chunk.stored].storage].file);
    }
  }
  return files;
}

void ComputedReader::lose_with_operands(Findings& findings) const {
  const Catalog& first = readers_.front()->catalog();
  for (std::uint32_t i = 0; i < formulas_.size(); ++i) {
    for (const Leaf& leaf : leaves_of(formulas_[i].value)) {
      for (const Chunk& chunk : first.chunks_of(first.tensors[leaf.tensor])) {
        const Error* const why = findings.lost_storage(first.stored[chunk.stored].storage);
        if (why != nullptr) findings.lose_storage(first_storage_ + i, Error(*why));
      }
    }
  }
}

/// Copies the first reader's entries again after they changed. They come before the entries of formulas.
void ComputedReader::take_stored() {
  const Catalog& first = readers_.front()->catalog();
  std::ranges::copy(first.storages, catalog_.storages.begin());
  std::ranges::copy(first.stored, catalog_.stored.begin());
  std::ranges::copy(first.chunks, catalog_.chunks.begin());
}

void ComputedReader::locate(std::span<const std::uint32_t> tensors) {
  std::vector<std::vector<std::uint32_t>> wanted(readers_.size());
  for (const std::uint32_t tensor : tensors) {
    if (inner_[tensor] != kNoIndex) wanted[0].push_back(inner_[tensor]);
    if (formula_[tensor] == kNoIndex) continue;
    for (const Leaf& leaf : leaves_of(formulas_[formula_[tensor]].value)) wanted[leaf.reader].push_back(leaf.tensor);
  }
  for (std::size_t i = 0; i < readers_.size(); ++i) {
    sort_unique(wanted[i]);
    if (!wanted[i].empty()) readers_[i]->locate(wanted[i]);
  }
  take_stored();
}

void ComputedReader::load_objects() {
  readers_.front()->load_objects();
  take_objects();
}

std::size_t ComputedReader::reader_of(std::uint32_t file) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(first_file_, file) - first_file_.begin()) - 1;
}

std::shared_ptr<const RandomReader> ComputedReader::file(std::uint32_t index) const {
  const std::size_t reader = reader_of(index);
  return readers_[reader]->file(index - first_file_[reader]);
}

bool ComputedReader::check_container(std::uint32_t file, ContainerReport& report) const {
  const std::size_t reader = reader_of(file);
  return readers_[reader]->check_container(file - first_file_[reader], report);
}

std::shared_ptr<const RandomReader> ComputedReader::bytes_of(std::uint32_t storage) const {
  if (storage < first_storage_) return readers_.front()->bytes_of(storage);
  const Formula& formula = formulas_[storage - first_storage_];
  return std::make_shared<ComputedBytes>(formula, formula.dtype, readers_);
}

std::shared_ptr<const RandomReader> ComputedReader::unrounded_bytes_of(std::uint32_t storage) const {
  return std::make_shared<ComputedBytes>(formulas_[storage - first_storage_], DType::kFloat32, readers_);
}

}  // namespace shard
