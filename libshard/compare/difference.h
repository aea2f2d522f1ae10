/// \file
/// The difference between two checkpoints, regardless of their formats and layouts: names, dtypes, shapes, objects,
/// values.
#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>
#include <vector>

#include "libshard/catalog/selection/selection.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/compare/comparer.h"
#include "libshard/compare/pass.h"
#include "libshard/exec/execute.h"
#include "libshard/ranks/group.h"

namespace shard {

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

/// Compares the elements of the pairs in `found.values`. It does one rank's part of the work: each rank of a group has
/// one over the same sources.
class ValuePass {
 public:
  /// Collective.
  /// \throws Error kInvalidArgument  the ranks see different tensors
  /// Ownership: all arguments must outlive this object.
  ValuePass(const ComparedSide& a, const ComparedSide& b, Difference& found, const Tolerance& tolerance,
            const PassOptions& options, Group& group, Progress& progress);
  ~ValuePass();
  std::int64_t total_bytes() const;  ///< The number of bytes that all ranks together read.
  /// Reads and compares this rank's share. Runs as the work of a collective step.
  /// \throws Error  a file cannot be read or is damaged
  void read(const std::stop_token& stop);
  /// Reduces `found.values` to the pairs that differ, on all ranks. Collective. \pre read() has finished
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Runs the whole comparison in one process.
Difference compare_checkpoints(const ComparedSide& a, const ComparedSide& b, const Tolerance& tolerance = {},
                               const PassOptions& options = {});

}  // namespace shard
