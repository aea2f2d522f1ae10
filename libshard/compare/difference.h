/// \file The difference between two checkpoints of any formats and layouts: names, dtypes, shapes, objects, values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "libshard/catalog/selection/selection.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/compare/pass.h"
#include "libshard/core/dtype.h"
#include "libshard/exec/execute.h"
#include "libshard/ranks/group.h"

namespace shard {

// Elements of two tensors of one dtype: how many differ, by how much, and which one is the first.
//
// Values are compared as numbers: 0 equals -0, and NaN equals nothing unless the tolerance accepts it. Floats and
// complex numbers are compared as float64, which represents all of them exactly. Integers are compared in their own
// type. Other dtypes (float4, float6, bits, quantized) are compared by their bits, without distances.

/// Elements are equal if any of these accepts them.
struct Tolerance {
  double atol = 0, rtol = 0;  ///< |a - b| <= atol + rtol * |b|, for finite numbers.
  std::int64_t ulp = 0;       ///< At most this many representable numbers apart.
  bool equal_nan = false;
};

/// The number of distances in [base^exponent, base^(exponent + 1)).
struct HistogramBin {
  int exponent = 0;
  std::int64_t count = 0;
  friend bool operator==(const HistogramBin&, const HistogramBin&) = default;
};
/// The non-empty bins, sorted by exponent. No bin counts distances that are NaN or infinite.
using Histogram = std::vector<HistogramBin>;

/// The differences between two tensors. Distances: of the differing elements; absent if the dtype has none.
struct ValueDifference {
  std::int64_t elements = 0, differing = 0;
  std::int64_t first = -1;  ///< The row-major index of the first differing element.
  std::optional<double> max_abs, max_rel;
  std::optional<std::uint64_t> max_ulp;
  Histogram abs;  ///< Distances |a - b|. The base is 10.
  Histogram ulp;  ///< Counts of representable numbers between a and b. The base is 2.
};

/// Receives a tensor block by block, in order. Equal blocks cost a memcmp and a search for NaN. Memory: 1,000 counts.
class Comparer {
 public:
  Comparer(DType dtype, const Tolerance& tolerance);
  /// \pre a and b are the packed elements [begin, begin + count).
  void add(std::int64_t begin, std::int64_t count, std::span<const std::byte> a, std::span<const std::byte> b);
  /// The differences in all blocks so far.
  ValueDifference result() const;

 private:
  enum class Kind { kFloat, kInteger, kBits };
  void add_floats(std::int64_t begin, std::span<const std::byte> a, std::span<const std::byte> b);
  void add_integers(std::int64_t begin, std::span<const std::byte> a, std::span<const std::byte> b);
  void add_bits(std::int64_t begin, std::int64_t count, std::span<const std::byte> a, std::span<const std::byte> b);
  void differs(std::int64_t element);
  void differs_by(std::int64_t element, double abs, double rel);
  std::uint64_t ulps_apart(const std::byte* a, const std::byte* b) const;

  DType dtype_, part_;  ///< part_ is the dtype of a complex number's halves, or the dtype itself.
  int parts_ = 1;
  Kind kind_;
  Tolerance tolerance_;
  ValueDifference result_;                             ///< Has no histograms; result() builds them from the counts.
  std::vector<std::int64_t> abs_counts_, ulp_counts_;  ///< Counts by exponent, from the lowest one. Empty at first.
  std::vector<double> a_, b_;
};

struct TensorPair {
  const SelectedTensor* a = nullptr;
  const SelectedTensor* b = nullptr;
  ValueDifference values;  ///< Filled if dtypes and shapes are equal.
};
/// An object that differs. One of the two is null if that side lacks the name.
struct ObjectPair {
  const SelectedObject* a = nullptr;
  const SelectedObject* b = nullptr;
};

/// Ownership: refers to entries of both selections.
struct Difference {
  std::vector<const SelectedTensor*> only_in_a, only_in_b;
  std::vector<TensorPair> dtype, shape, values;
  std::vector<ObjectPair> objects;
  std::int64_t tensors = 0;  ///< Number of tensors compared.

  bool equal() const {
    return only_in_a.empty() && only_in_b.empty() && dtype.empty() && shape.empty() && values.empty() &&
           objects.empty();
  }
};

/// One of the two checkpoints, and the part of it that is compared. Tensors are compared in the dtypes that the
/// selection converts them to. Both lists of the selection are sorted by name, as `select` returns them.
struct ComparedSide {
  Reader& reader;
  const Selection& selection;

  const Catalog& catalog() const { return reader.catalog(); }
};

/// Whether a format stores two objects in different forms, such as strings of fixed and of variable length. The result
/// is false for objects of different formats.
bool differ_in_form(const Catalog& a, const Catalog& b, const Value* in_a, const Value* in_b);

/// Compares names, dtypes, shapes and objects; reads no elements. `values` of the result lists the pairs whose values
/// are still to be compared. \pre the readers have loaded their objects if the selections contain any
Difference compare_entries(const ComparedSide& a, const ComparedSide& b);

/// Compares the elements of the pairs in `found.values`. Each rank of a group has one over the same sources, which does
/// this rank's part of the work.
class ValuePass {
 public:
  /// Collective.
  /// \throws Error kInvalidArgument  the ranks see different tensors
  /// Ownership: all arguments must outlive this object.
  ValuePass(const ComparedSide& a, const ComparedSide& b, Difference& found, const Tolerance& tolerance,
            const PassOptions& options, Group& group, Progress& progress);
  std::int64_t total_bytes() const { return bytes_; }  ///< The number of bytes that all ranks together read.
  /// Reads and compares this rank's share. Runs as the work of a collective step.
  /// \throws Error  a file cannot be read or is damaged
  void read(const std::stop_token& stop);
  /// Reduces `found.values` to the pairs that differ, on all ranks. Collective. \pre read() has finished
  void finish();

 private:
  struct WorkerShare;

  ValueDifference compare(const TensorPair& pair, const std::stop_token& stop, WorkerShare& share);
  void collect();

  const ComparedSide a_, b_;
  Difference& found_;
  const Tolerance tolerance_;
  const PassOptions options_;
  Group& group_;
  Progress& progress_;
  std::int64_t bytes_ = 0;
  std::size_t first_ = 0, last_ = 0;  ///< This rank's part of `found_.values`.
};

/// Runs the whole comparison in one process.
Difference compare_checkpoints(const ComparedSide& a, const ComparedSide& b, const Tolerance& tolerance = {},
                               const PassOptions& options = {});

}  // namespace shard
