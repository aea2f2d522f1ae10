#include "shardtorch/dtensor/redistribution_plan.h"

#include <algorithm>
#include <utility>

#include "libshard/core/box.h"

namespace shard::dtensor {

namespace {

std::vector<MeshAxis> axes_of(const TensorLayout& layout) {
  std::vector<MeshAxis> axes;
  for (const std::int64_t size : layout.mesh) axes.push_back({"", size});
  return axes;
}

std::int64_t volume(const std::vector<BoxCopy>& copies) {
  std::int64_t elements = 0;
  for (const BoxCopy& copy : copies) elements += c10::multiply_integers(copy.sizes);
  return elements;
}

/// The boxes that each rank reads from each other rank.
class Planner {
 public:
  Planner(const TensorLayout& from, const Placements& to)
      : mesh_(from.mesh), before_(parts_of(from)), after_(parts_of({from.shape, from.mesh, to})) {
    for (std::size_t axis = 0; axis < mesh_.size(); ++axis) {
      const Placement& placement = from.placements[axis];
      const bool is_kept = is_partial(placement) && placement == to[axis];
      is_term_.push_back(is_partial(placement) && !is_kept);
      is_own_.push_back(std::holds_alternative<Replicate>(placement) || is_kept);
    }
  }

  RedistributionPlan run(std::int64_t own) const {
    RedistributionPlan plan;
    plan.new_sizes = part(after_, own).local_sizes;
    for (std::int64_t rank = 0; rank < std::ssize(before_); ++rank) {
      plan.to.push_back(copies(own, rank));
      plan.from.push_back(copies(rank, own));
      plan.term_of.push_back(term_of(rank));
    }
    for (std::size_t axis = 0; axis < mesh_.size(); ++axis) {
      if (is_term_[axis]) plan.terms *= static_cast<std::size_t>(mesh_[axis]);
    }
    plan.is_local = plan.terms == 1 && is_local();
    return plan;
  }

 private:
  static const RankPiece& part(const std::vector<RankPiece>& parts, std::int64_t rank) {
    return parts[static_cast<std::size_t>(rank)];
  }

  Sizes coordinate(std::int64_t rank) const {
    Sizes place(mesh_.size());
    set_index<std::int64_t>(place, mesh_, rank);
    return place;
  }

  /// The boxes that `target` reads from `source`; nothing if another replica is nearer.
  std::vector<BoxCopy> copies(std::int64_t source, std::int64_t target) const {
    const Sizes from = coordinate(source), to = coordinate(target);
    for (std::size_t axis = 0; axis < mesh_.size(); ++axis) {
      if (is_own_[axis] && from[axis] != to[axis]) return {};
    }
    return common_boxes(part(before_, source), part(after_, target));
  }

  std::size_t term_of(std::int64_t rank) const {
    const Sizes place = coordinate(rank);
    std::int64_t term = 0;
    for (std::size_t axis = 0; axis < mesh_.size(); ++axis) {
      if (is_term_[axis]) term = term * mesh_[axis] + place[axis];
    }
    return static_cast<std::size_t>(term);
  }

  bool is_local() const {
    for (std::int64_t rank = 0; rank < std::ssize(before_); ++rank) {
      if (volume(copies(rank, rank)) != c10::multiply_integers(part(after_, rank).local_sizes)) return false;
    }
    return true;
  }

  const Sizes mesh_;
  const std::vector<RankPiece> before_, after_;
  std::vector<bool> is_term_;  ///< By axis: whether its ranks have terms to reduce.
  std::vector<bool> is_own_;   ///< By axis: whether a rank reads only from ranks at its own position.
};

}  // namespace

std::string to_string(const TensorLayout& layout) {
  return c10::str("size=", at::IntArrayRef(layout.shape), ", placements=", to_string(layout.placements));
}

std::vector<RankPiece> parts_of(const TensorLayout& layout) {
  return place(layout.shape, axes_of(layout), in_catalog(layout.placements));
}

RankPiece part_of(const TensorLayout& layout, std::int64_t rank) {
  return place_rank(layout.shape, axes_of(layout), in_catalog(layout.placements), rank);
}

std::vector<BoxCopy> common_boxes(const RankPiece& from, const RankPiece& to) {
  std::vector<BoxCopy> copies;
  for (std::size_t i = 0; i < from.boxes.size(); ++i) {
    for (std::size_t j = 0; j < to.boxes.size(); ++j) {
      const Box &source = from.boxes[i], &target = to.boxes[j];
      const Box common = intersect(source, target);
      if (common.empty()) continue;
      BoxCopy copy{{}, {}, sizes_of(common).vec()};
      for (std::size_t d = 0; d < copy.sizes.size(); ++d) {
        copy.from.push_back(from.local_offsets[i][d] + common.offset[d] - source.offset[d]);
        copy.to.push_back(to.local_offsets[j][d] + common.offset[d] - target.offset[d]);
      }
      copies.push_back(std::move(copy));
    }
  }
  return copies;
}

RedistributionPlan plan_redistribution(const TensorLayout& from, const Placements& placements, std::int64_t own) {
  return Planner(from, placements).run(own);
}

}  // namespace shard::dtensor
