/// \file
/// Common code of the tests of DTensors: tensors sharded by torch's own chunk, and random placements.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "libshard/core/box.h"
#include "shardtorch/dtensor/dtensor.h"
#include "tests/support/distributed/multi_thread_test.h"

namespace shard::test {

using dtensor::DTensor;
using dtensor::Partial;
using dtensor::Placements;
using dtensor::Replicate;
using dtensor::StridedShard;
using dtensor::TensorLayout;
using CutBy = dtensor::Shard;

template <class E>
auto RefusesWith(const std::string& text) {
  return ::testing::ThrowsMessage<E>(::testing::HasSubstr(text));
}

/// 0, 1, 2, ... in that shape.
inline at::Tensor numbered(at::IntArrayRef size, at::ScalarType dtype = at::kDouble) {
  return at::arange(c10::multiply_integers(size), at::kDouble).view(size).to(dtype);
}

/// torch.chunk with exactly the requested number of parts.
inline std::vector<at::Tensor> chunks_of(const at::Tensor& tensor, std::int64_t parts, std::int64_t dim) {
  std::vector<at::Tensor> chunks = at::chunk(tensor, parts, dim);
  while (std::ssize(chunks) < parts) chunks.push_back(tensor.narrow(dim, 0, 0));
  return chunks;
}

inline Sizes coordinate_of(const Sizes& mesh, std::int64_t rank) {
  Sizes place(mesh.size());
  set_index<std::int64_t>(place, mesh, rank);
  return place;
}

/// The part of `whole` on `rank`; for a Partial axis the same as for a Replicate one.
inline at::Tensor obvious_part(const at::Tensor& whole, const Sizes& mesh, const Placements& placements,
                               std::int64_t rank) {
  const Sizes place = coordinate_of(mesh, rank);
  at::Tensor part = whole;
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    const auto own = static_cast<std::size_t>(place[axis]);
    if (const auto* const cut = std::get_if<CutBy>(&placements[axis])) {
      part = chunks_of(part, mesh[axis], cut->dim)[own];
    } else if (const auto* const strided = std::get_if<StridedShard>(&placements[axis])) {
      std::vector<at::Tensor> pieces;
      for (const at::Tensor& piece : chunks_of(part, strided->split_factor, strided->dim)) {
        pieces.push_back(chunks_of(piece, mesh[axis], strided->dim)[own]);
      }
      part = at::cat(pieces, strided->dim);
    }
  }
  return part.contiguous();
}

/// `tensor` has the expected part of `whole` on this rank.
inline void expect_part(const DTensor& tensor, const at::Tensor& whole, const std::string& what = "") {
  const at::Tensor expected =
      obvious_part(whole, tensor.device_mesh()->shape(), tensor.placements(), *tensor.device_mesh()->index());
  EXPECT_EQ(tensor.sizes(), whole.sizes());
  EXPECT_TRUE(tensor.local().equal(expected)) << tensor << what << '\n' << tensor.local() << '\n' << expected;
}

/// `part` as the term of `rank` for the Partial axes. The terms of all ranks of those axes combine to `part`, exactly.
inline at::Tensor obvious_term(at::Tensor part, const Sizes& mesh, const Placements& placements, std::int64_t rank) {
  const Sizes place = coordinate_of(mesh, rank);
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    const auto* const partial = std::get_if<Partial>(&placements[axis]);
    if (partial == nullptr) continue;
    const std::int64_t ranks = mesh[axis], own = place[axis];
    // Weights that add up to 1: 2, 3, ... and the rest.
    const std::int64_t others = ranks * (ranks + 1) / 2 - 1;
    const std::int64_t weight = own == 0 ? 1 - others : own + 1;
    if (partial->op == ReduceOp::kSum) part = part * weight;
    if (partial->op == ReduceOp::kMean) part = part * weight * ranks;
    if (partial->op == ReduceOp::kMin) part = part + own;
    if (partial->op == ReduceOp::kMax) part = part - own;
  }
  return part.contiguous();
}

/// Random cases, the same for the same seed.
class RandomCases {
 public:
  explicit RandomCases(std::uint32_t seed) : random_(seed) {}

  std::int64_t below(std::int64_t end) { return std::uniform_int_distribution<std::int64_t>(0, end - 1)(random_); }

  /// A mesh of exactly `ranks` ranks: 1 to 3 axes.
  Sizes mesh(std::int64_t ranks) {
    Sizes axes;
    while (axes.size() < 2 && below(3) != 0) {
      std::int64_t size = 1 + below(ranks);
      while (ranks % size != 0) --size;
      axes.push_back(size);
      ranks /= size;
    }
    axes.push_back(ranks);
    return axes;
  }

  Sizes shape() {
    Sizes sizes(static_cast<std::size_t>(below(4)));
    for (std::int64_t& size : sizes) size = below(10);
    return sizes;
  }

  /// Shards, strided ones, and replicas.
  Placements placements(std::size_t axes, std::size_t dims) {
    Placements result;
    for (std::size_t axis = 0; axis < axes; ++axis) {
      const std::int64_t kind = dims == 0 ? 0 : below(4);
      const std::int64_t dim = dims == 0 ? 0 : below(static_cast<std::int64_t>(dims));
      if (kind == 0) result.emplace_back(Replicate());
      if (kind == 1 || kind == 2) result.emplace_back(CutBy{dim});
      if (kind == 3) result.emplace_back(StridedShard{dim, 1 + below(4)});
    }
    return result;
  }

  /// Makes some axes of `placements` Partial, all with operations that commute.
  Placements with_partials(Placements placements) {
    static constexpr ReduceOp kOps[] = {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kSum};
    const ReduceOp op = kOps[below(3)];
    for (auto& each : placements) {
      if (below(3) != 0) continue;
      each = Partial{op == ReduceOp::kSum && below(2) == 0 ? ReduceOp::kMean : op};
    }
    return placements;
  }

 private:
  std::mt19937 random_;
};

}  // namespace shard::test
