/// \file
/// The result of `diff`, and how it is printed.
#pragma once

#include <string>
#include <vector>

#include "apps/shardctl/source/compare.h"
#include "apps/shardctl/source/source.h"
#include "apps/shardctl/text/json_writer.h"

namespace shard::app {

struct TensorPair {
  const SelectedTensor* a = nullptr;
  const SelectedTensor* b = nullptr;
  ValueDifference values;  ///< Filled where dtypes and shapes are equal.
};
/// An object that differs; one of the two is null where the name is absent on that side.
struct ObjectPair {
  const SelectedObject* a = nullptr;
  const SelectedObject* b = nullptr;
};

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

/// One of the two checkpoints.
struct ComparedSide {
  const std::string& label;  ///< As the user wrote it.
  const Catalog& catalog;
};

/// What is printed. Ownership: refers to all of it.
struct Compared {
  ComparedSide a, b;
  const Difference& difference;
  std::size_t limit;  ///< At most so many entries of each kind are listed.
};

/// Whether a format stores two objects in different forms, such as strings of fixed and of variable length. False for
/// objects of different formats.
bool differ_in_form(const Catalog& a, const Catalog& b, const Value* in_a, const Value* in_b);

/// Lines.
void render_text(const Session& session, const Compared& compared);
/// One `shardctl.diff/1`.
void render_json(JsonWriter& json, const Compared& compared);

}  // namespace shard::app
