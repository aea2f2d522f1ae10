#include "libshard/compute/requantize.h"

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "libshard/compute/computed_reader.h"
#include "libshard/compute/find_formulas.h"
#include "libshard/compute/merged_weights.h"
#include "libshard/compute/unrounded_reader.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"

namespace shard {

namespace {

/// Scales of more rows than this would be computed again for each part of a weight.
constexpr std::int64_t kMostBlockRows = 1024;

/// The stored tensors from which a ComputedReader computes, and their owner.
class StoredBeneath final : public Reader {
 public:
  explicit StoredBeneath(std::unique_ptr<ComputedReader> computed)
      : computed_(std::move(computed)), stored_(computed_->first_reader()) {}

  const Catalog& catalog() const override { return stored_.catalog(); }
  void locate(std::span<const std::uint32_t> tensors) override { stored_.locate(tensors); }
  void load_objects() override { stored_.load_objects(); }
  std::int64_t unread_object_bytes() const override { return stored_.unread_object_bytes(); }
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return stored_.file(index); }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override {
    return stored_.bytes_of(storage);
  }

 private:
  std::unique_ptr<ComputedReader> computed_;
  Reader& stored_;
};

/// Replaces merged weights by the stored tensors of quantized modules.
class Repacking {
 public:
  Repacking(const Catalog& stored, const std::vector<Formula>& formulas) : stored_(stored) {
    for (const Formula& formula : formulas) by_name_.try_emplace(std::string_view(formula.name), &formula);
  }

  void add(Formula merged) {
    const Formula* const* const found = by_name_.find(std::string_view(merged.name));
    if (found == nullptr) return add_plain(std::move(merged));
    const auto& codes = std::get<ScaledCodes>((*found)->value.node);
    check(merged, **found, codes);
    const auto of = std::make_shared<BlockQuantization>();
    of->value = std::make_shared<TensorExpression>(std::move(merged.value));
    of->slices = codes.slices, of->rows = codes.rows, of->columns = codes.columns;
    of->grid = codes.scales.grid;
    of->codes = codes.codes.tensor, of->scales = codes.scales.tensor;
    of->is_float8 = codes.kind == CodeKind::kFloat8;
    of->bits = codes.codes.bits;
    of->has_powers = codes.scales.are_powers;
    replace(of->codes.tensor, {QuantizedCodes{of}}, of->is_float8 ? 0 : of->bits);
    replace(of->scales.tensor, {QuantizedScales{of}}, 0);
    ++packed_;
  }

  Computation finish() { return std::move(made_); }
  std::int64_t packed() const { return packed_; }

 private:
  void add_plain(Formula merged) {
    const auto drop = [&](std::string_view name) { made_.dropped.push_back(stored_.index_of(*stored_.find(name))); };
    drop(merged.name);
    for (const std::string& alias : merged.aliases) drop(alias);
    made_.formulas.push_back(std::move(merged));
  }

  void replace(std::uint32_t tensor, TensorExpression value, int packed_bits) {
    Formula formula = formula_like(stored_.tensors[tensor]);
    formula.value = std::move(value);
    formula.packed_bits = packed_bits;
    made_.formulas.push_back(std::move(formula));
    made_.dropped.push_back(tensor);
  }

  void check(const Formula& merged, const Formula& weight, const ScaledCodes& codes) const {
    std::string_view obstacle = obstacle_of(codes);
    if (!weight.aliases.empty() || !merged.aliases.empty()) obstacle = "it is stored under several names";
    if (obstacle.empty()) return;
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot pack '{}' again: {}", merged.name, obstacle))
        .of_tensor(stored_.tensors[codes.codes.tensor.tensor].name)
        .because(
            "float8_e4m3fn with scales for rows or blocks, and symmetric integers with scales for rows or groups "
            "are packed");
  }

  /// The reason why a form is not packed; empty: it is.
  std::string_view obstacle_of(const ScaledCodes& codes) const {
    const BlockScales& scales = codes.scales;
    const bool is_float8 =
        codes.kind == CodeKind::kFloat8 && stored_.tensors[codes.codes.tensor.tensor].dtype == DType::kFloat8E4m3fn;
    const bool is_packed = codes.kind == CodeKind::kOffset && codes.codes.packing == Packing::kAlongRow;
    if (codes.zeros) return "it has zero points";
    if (scales.second || scales.nested || scales.are_exponents || scales.are_float8)
      return "its scales are not plain numbers";
    if (codes.row_group || codes.column_group) return "its groups are in any order";
    if (!is_float8 && !is_packed) return "no packing is known for its form";
    if (scales.grid.block_rows > kMostBlockRows) return "its scales are for too many rows";
    if (is_packed && scales.grid.block_rows > 1) return "its scales are for several rows";
    const std::int64_t bits = codes.codes.bits;
    if (is_packed && (kPackedWordBits % bits != 0 || codes.columns * bits % kPackedWordBits != 0)) {
      return "its rows are not whole words";
    }
    const std::int64_t panels = checked_mul(codes.slices, ceil_div(codes.rows, scales.grid.block_rows));
    const std::int64_t count = checked_mul(panels, ceil_div(codes.columns, scales.grid.block_columns));
    return checked_numel(stored_.tensors[scales.tensor.tensor].shape) == count ? "" : "its scales have an unusual form";
  }

  const Catalog& stored_;
  HashMap<std::string_view, const Formula*> by_name_;
  Computation made_;
  std::int64_t packed_ = 0;
};

}  // namespace

std::unique_ptr<Reader> merge_and_requantize(std::unique_ptr<Reader> base, const QuantizationFacts& facts,
                                             std::vector<Adapter> adapters, std::vector<MergedAdapter>& counts,
                                             std::int64_t& packed) {
  Computation plain = find_formulas(base->catalog(), DType::kFloat32, facts, small_reader(*base));
  if (plain.formulas.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "cannot pack weights again: none is quantized");
  }
  for (Formula& formula : plain.formulas) formula.through_float16 = false;
  const std::vector<Formula> formulas = plain.formulas;
  std::vector<std::unique_ptr<Reader>> stored;
  stored.push_back(std::move(base));
  auto computed = std::make_unique<ComputedReader>(std::move(stored), std::move(plain));
  auto unrounded = std::make_unique<UnroundedReader>(*computed, ComputedReaders{computed.get()});
  Repacking packing(computed->first_reader().catalog(), formulas);
  Computation merged = merged_weights(computed->catalog(), adapters, unrounded.get(), true, counts);
  for (Formula& formula : merged.formulas) packing.add(std::move(formula));
  packed = packing.packed();
  std::vector<std::unique_ptr<Reader>> readers;
  readers.push_back(std::make_unique<StoredBeneath>(std::move(computed)));
  readers.push_back(std::move(unrounded));
  for (Adapter& adapter : adapters) readers.push_back(std::move(adapter.reader));
  return std::make_unique<ComputedReader>(std::move(readers), packing.finish());
}

}  // namespace shard
