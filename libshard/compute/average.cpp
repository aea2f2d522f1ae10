#include "libshard/compute/average.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "libshard/catalog/quantized.h"
#include "libshard/compute/operand.h"
#include "libshard/compute/unrounded_reader.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

bool is_averaged(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16;
}

Error unlike(const std::string& message, std::string_view tensor, FindingKind kind) {
  return Error(ErrorCode::kCorruption, message).of_tensor(tensor).of_kind(kind);
}

Error missing(const Tensor& tensor, const std::string& from, const std::string& other) {
  return unlike(fmt::format("cannot average: tensor '{}' is missing in {}", tensor.name, from), tensor.name,
                FindingKind::kGap)
      .because(fmt::format("{} has it", other))
      .suggest(Remedy::kExclude, std::string(tensor.name));
}

/// A checkpoint among the readers.
struct Averaged {
  std::uint32_t reader = 0;
  const UnroundedReader* unrounded = nullptr;  ///< The reader after it; null: there is none.
};

/// Pairs the tensors of the checkpoints, and builds the formulas of their sums. Checkpoints and readers have separate
/// numbers.
class Averaging {
 public:
  Averaging(Readers readers, std::span<const Averaged> checkpoints, const AverageOptions& options)
      : readers_(readers), checkpoints_(checkpoints), options_(options) {}

  Computation make() {
    for (std::size_t checkpoint = 0; checkpoint < checkpoints_.size(); ++checkpoint) {
      taken_.push_back(taken(checkpoint));
      refuse_quantized(checkpoint);
    }
    check_names();
    for (std::size_t checkpoint = 0; checkpoint < checkpoints_.size(); ++checkpoint) locate_compared(checkpoint);
    Computation made;
    made.keeps_object = options_.takes_object;
    const Catalog& first = catalog(0);
    for (std::uint32_t i = 0; i < first.tensors.size(); ++i) {
      if (!takes(first.tensors[i])) made.dropped.push_back(i);
    }
    std::vector<std::uint32_t> formula_at(taken_[0].size(), kNoIndex);
    for (std::size_t i = 0; i < taken_[0].size(); ++i) {
      const bool is_sum = is_averaged(at(0, i).dtype);
      for (std::size_t checkpoint = 0; checkpoint < checkpoints_.size(); ++checkpoint) {
        check_tensor(checkpoint, i);
        if (!is_sum && checkpoint > 0) compare_values(checkpoint, i);
      }
      if (is_sum) add(i, formula_at, made);
    }
    return made;
  }

 private:
  Reader& reader_of(std::size_t checkpoint) const { return *readers_[checkpoints_[checkpoint].reader]; }
  const Catalog& catalog(std::size_t checkpoint) const { return reader_of(checkpoint).catalog(); }
  /// A tensor by its position in taken_.
  const Tensor& at(std::size_t checkpoint, std::size_t i) const {
    return catalog(checkpoint).tensors[taken_[checkpoint][i]];
  }
  bool takes(const Tensor& tensor) const { return !options_.takes_tensor || options_.takes_tensor(tensor); }

  std::vector<std::uint32_t> taken(std::size_t checkpoint) const {
    std::vector<std::uint32_t> tensors;
    for (std::uint32_t i = 0; i < catalog(checkpoint).tensors.size(); ++i) {
      if (takes(catalog(checkpoint).tensors[i])) tensors.push_back(i);
    }
    return tensors;
  }

  /// Codes mean nothing without their scales.
  void refuse_quantized(std::size_t checkpoint) const {
    const QuantizedPart part = find_quantized(catalog(checkpoint));
    for (const std::uint32_t tensor : taken_[checkpoint]) {
      const std::uint32_t module = part.module_of[tensor];
      if (module == kNoIndex) continue;
      const QuantizedForm form = part.modules[module].form;
      if (!part.modules[module].has_weight && form != QuantizedForm::kState) continue;
      const std::string_view name = catalog(checkpoint).tensors[tensor].name;
      Error error(ErrorCode::kUnsupported, fmt::format("cannot average '{}': it is quantized", name));
      error.of_tensor(name).because(fmt::format("its form is {}", quantized_form_name(form)));
      if (has_formula(form)) error.suggest(Remedy::kDequantize);
      throw error.in_file(options_.labels[checkpoint]);
    }
  }

  void check_names() const {
    const std::size_t count = taken_[0].size();
    for (std::size_t checkpoint = 1; checkpoint < checkpoints_.size(); ++checkpoint) {
      for (std::size_t i = 0; i < std::max(count, taken_[checkpoint].size()); ++i) {
        const bool has_first = i < count, has_other = i < taken_[checkpoint].size();
        if (has_first && has_other && at(0, i).name == at(checkpoint, i).name) continue;
        const bool lacks = has_first && (!has_other || at(0, i).name < at(checkpoint, i).name);
        if (lacks) throw missing(at(0, i), options_.labels[checkpoint], options_.labels[0]);
        throw missing(at(checkpoint, i), options_.labels[0], options_.labels[checkpoint]);
      }
    }
  }

  void check_tensor(std::size_t checkpoint, std::size_t i) const {
    const Tensor &first = at(0, i), &other = at(checkpoint, i);
    const std::string& label = options_.labels[checkpoint];
    if (first.shape != other.shape) {
      throw unlike(fmt::format("cannot average '{}': its shape in {} is different from that in {}", first.name, label,
                               options_.labels[0]),
                   first.name, FindingKind::kShapeMismatch)
          .expected(to_string(first.shape))
          .found(to_string(other.shape));
    }
    if (is_averaged(first.dtype) && is_averaged(other.dtype)) return;
    if (first.dtype != other.dtype) {
      throw unlike(fmt::format("cannot average '{}': its dtype in {} is different from that in {}", first.name, label,
                               options_.labels[0]),
                   first.name, FindingKind::kDtypeMismatch)
          .expected(dtype_name(first.dtype))
          .found(dtype_name(other.dtype));
    }
    if (!is_float(first.dtype) && !is_complex(first.dtype)) return;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("cannot average '{}': its dtype is {}", first.name, dtype_name(first.dtype)))
        .of_tensor(first.name)
        .because("sums are computed in float32, from float32, float16 and bfloat16")
        .suggest(Remedy::kExclude, std::string(first.name));
  }

  /// Locates the tensors that are not averaged in one call, because each call may cost time by the size of the catalog.
  void locate_compared(std::size_t checkpoint) const {
    std::vector<std::uint32_t> tensors;
    for (std::size_t i = 0; i < taken_[0].size(); ++i) {
      if (!is_averaged(at(0, i).dtype)) tensors.push_back(taken_[checkpoint][i]);
    }
    if (!tensors.empty()) reader_of(checkpoint).locate(tensors);
  }

  /// Compares a tensor that is not averaged with the first checkpoint's. \pre both are located
  void compare_values(std::size_t checkpoint, std::size_t i) const {
    const Leaf first{.tensor = taken_[0][i]}, other{taken_[checkpoint][i], checkpoints_[checkpoint].reader};
    Operand a(readers_, first), b(readers_, other);
    for (std::int64_t begin = 0; begin < a.elements(); begin += Values::kMostTaken) {
      const std::int64_t end = std::min(begin + Values::kMostTaken, a.elements());
      if (std::ranges::equal(a.read(begin, end), b.read(begin, end))) continue;
      const Tensor& tensor = at(0, i);
      throw unlike(fmt::format("cannot average '{}': its values in {} are different from those in {}", tensor.name,
                               options_.labels[checkpoint], options_.labels[0]),
                   tensor.name, FindingKind::kReplicaMismatch)
          .because(fmt::format("its dtype is {}, and such tensors must be equal", dtype_name(tensor.dtype)))
          .suggest(Remedy::kExclude, std::string(tensor.name));
    }
  }

  /// Whether two tensors are one in every checkpoint.
  bool is_tied(std::size_t i, std::size_t other) const {
    for (std::size_t checkpoint = 0; checkpoint < checkpoints_.size(); ++checkpoint) {
      const auto stored = [&](std::size_t position) {
        return catalog(checkpoint).original_of(taken_[checkpoint][position]);
      };
      if (stored(i) != stored(other)) return false;
    }
    return true;
  }

  Formula formula_of(std::size_t i) const {
    WeightedSum sum;
    for (std::size_t checkpoint = 0; checkpoint < checkpoints_.size(); ++checkpoint) {
      const Averaged& from = checkpoints_[checkpoint];
      const std::uint32_t tensor = taken_[checkpoint][i];
      const bool is_computed = from.unrounded != nullptr && from.unrounded->has(tensor);
      const Leaf leaf{tensor, is_computed ? from.reader + 1 : from.reader};
      sum.terms.push_back({options_.weights[checkpoint], std::make_shared<TensorExpression>(TensorExpression{leaf})});
    }
    Formula formula = formula_like(at(0, i));
    formula.dtype = options_.dtype.value_or(formula.dtype);
    formula.value = {std::move(sum)};
    return formula;
  }

  /// Adds the sum of a tensor, or its name to the sum that it is tied to. \param formula_at  by position
  void add(std::size_t i, std::vector<std::uint32_t>& formula_at, Computation& made) const {
    made.dropped.push_back(taken_[0][i]);
    const auto original = std::ranges::lower_bound(taken_[0], at(0, i).alias_of);
    const auto other = static_cast<std::size_t>(original - taken_[0].begin());
    if (other < i && is_tied(i, other)) {
      formula_at[i] = formula_at[other];
      made.formulas[formula_at[i]].aliases.emplace_back(at(0, i).name);
      return;
    }
    formula_at[i] = static_cast<std::uint32_t>(made.formulas.size());
    made.formulas.push_back(formula_of(i));
  }

  Readers readers_;
  std::span<const Averaged> checkpoints_;
  const AverageOptions& options_;
  std::vector<std::vector<std::uint32_t>> taken_;  ///< By checkpoint: tensors of one name have one position.
};

}  // namespace

std::vector<float> moving_average_weights(std::size_t count, double beta) {
  std::vector<float> weights;
  for (std::size_t k = 1; k <= count; ++k) {
    const double decayed = std::pow(beta, static_cast<double>(count - k));
    weights.push_back(static_cast<float>(k == 1 ? decayed : (1 - beta) * decayed));
  }
  return weights;
}

std::unique_ptr<Reader> averaged(std::vector<std::unique_ptr<Reader>> readers, const AverageOptions& options) {
  std::vector<std::unique_ptr<Reader>> all;
  std::vector<Averaged> checkpoints;
  for (std::size_t i = 0; i < readers.size(); ++i) {
    checkpoints.push_back({.reader = static_cast<std::uint32_t>(all.size())});
    all.push_back(std::move(readers[i]));
    if (options.computed.empty() || options.computed[i].empty()) continue;
    auto unrounded = std::make_unique<UnroundedReader>(*all.back(), options.computed[i]);
    checkpoints.back().unrounded = unrounded.get();
    all.push_back(std::move(unrounded));
  }
  Computation sums = Averaging(all, checkpoints, options).make();
  return std::make_unique<ComputedReader>(std::move(all), std::move(sums));
}

}  // namespace shard
