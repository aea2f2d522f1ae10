#include "libshard/compute/values.h"

#include <algorithm>
#include <span>
#include <vector>

#include "libshard/compute/operand.h"
#include "libshard/compute/unpack.h"

namespace shard {

namespace {

class LeafValues final : public Values {
 public:
  LeafValues(const Leaf& leaf, Readers readers) : operand_(readers, leaf) {}
  std::int64_t take(std::int64_t begin, std::int64_t end) override {
    const std::int64_t taken = std::min(end, begin + kMostTaken);
    operand_.read(begin, taken);
    return taken;
  }
  void compute(std::int64_t begin, std::span<float> out) override { operand_.read_floats(begin, out); }

 private:
  Operand operand_;
};

class SumValues final : public Values {
 public:
  SumValues(const WeightedSum& sum, Readers readers) : constant_(sum.constant), divisor_(sum.divisor) {
    for (const WeightedSum::Term& term : sum.terms) terms_.push_back({term.weight, open_values(*term.value, readers)});
    const auto terms = std::max<std::int64_t>(1, std::ssize(terms_));
    most_taken_ = std::max(kBlock, std::min(kMostTaken, kMostOfAll / terms));
  }

  std::int64_t take(std::int64_t begin, std::int64_t end) override {
    end = std::min(end, begin + most_taken_);
    for (const Term& term : terms_) end = term.values->take(begin, end);
    for (const Term& term : terms_) term.values->take(begin, end);  // An earlier term may have taken more.
    return end;
  }

  void compute(std::int64_t begin, std::span<float> out) override {
    const std::span<float> block = std::span(block_).first(out.size());
    std::size_t done = 0;
    if (constant_ == 0 && !terms_.empty()) {
      terms_.front().values->compute(begin, out);
      if (terms_.front().weight != 1) multiply(out, terms_.front().weight);
      done = 1;
    } else {
      std::ranges::fill(out, constant_);
    }
    for (const Term& term : std::span(terms_).subspan(done)) {
      term.values->compute(begin, block);
      add_weighted(out, block, term.weight);
    }
    if (divisor_ != 1) divide(out, divisor_);
  }

 private:
  struct Term {
    float weight;
    std::unique_ptr<Values> values;
  };

  static constexpr std::int64_t kMostOfAll = 1 << 20;  ///< Elements of all terms that are in memory.

  std::vector<Term> terms_;
  float constant_, divisor_;
  std::int64_t most_taken_;
  std::vector<float> block_ = std::vector<float>(kBlock);
};

}  // namespace

std::unique_ptr<Values> open_values(const TensorExpression& expression, Readers readers) {
  if (const Leaf* const leaf = std::get_if<Leaf>(&expression.node)) return std::make_unique<LeafValues>(*leaf, readers);
  if (const WeightedSum* const sum = std::get_if<WeightedSum>(&expression.node)) {
    return std::make_unique<SumValues>(*sum, readers);
  }
  if (const LowRankProduct* const product = std::get_if<LowRankProduct>(&expression.node)) {
    return open_values(*product, readers);
  }
  if (const NormalizedRows* const rows = std::get_if<NormalizedRows>(&expression.node)) {
    return open_values(*rows, readers);
  }
  if (const QuantizedScales* const scales = std::get_if<QuantizedScales>(&expression.node)) {
    return open_values(*scales, readers);
  }
  if (const QuantizedCodes* const codes = std::get_if<QuantizedCodes>(&expression.node)) {
    return open_values(*codes, readers);
  }
  return open_values(std::get<ScaledCodes>(expression.node), readers);
}

}  // namespace shard
