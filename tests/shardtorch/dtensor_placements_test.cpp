// Placements and meshes: their properties, and their refusals.
#include "tests/shardtorch/dtensor_fixture.h"

namespace shard::test {
namespace {

using dtensor::DeviceMeshPtr;
using dtensor::init_device_mesh;
using dtensor::make_device_mesh;
using dtensor::normalized;

TEST(Placements, ReadAsInPython) {
  EXPECT_EQ(to_string(Placements{CutBy{0}, Replicate(), StridedShard{1, 2}, Partial(), Partial{ReduceOp::kMean}}),
            "[S(0), R, _S(1, 2), P(sum), P(avg)]");
}

TEST(Placements, DimensionsCountFromTheFront) {
  EXPECT_EQ(normalized({CutBy{-1}, StridedShard{-2, 3}, Replicate()}, 3, 2),
            (Placements{CutBy{1}, StridedShard{0, 3}, Replicate()}));
}

TEST(Placements, RefuseWhatDoesNotFit) {
  EXPECT_THAT([] { normalized({CutBy{0}}, 2, 1); },
              RefusesWith<c10::ValueError>("`placements` must have the same length as `device_mesh.ndim`! Found "
                                           "placements length: 1, and device_mesh.ndim: 2."));
  EXPECT_THAT([] { normalized({CutBy{2}}, 1, 2); }, RefusesWith<c10::IndexError>("Dimension out of range"));
  EXPECT_THAT([] { normalized({CutBy{0}}, 1, 0); }, RefusesWith<c10::IndexError>("no dimensions"));
  EXPECT_THAT([] { normalized({StridedShard{0, 0}}, 1, 1); }, RefusesWith<c10::ValueError>("at least 1, found 0"));
  EXPECT_THAT(
      [] {
        normalized({Partial{ReduceOp::kMax}, Partial()}, 2, 1);
      },
      RefusesWith<c10::ValueError>("Mixing different Partial reduce types is not supported"));
  normalized({Partial{ReduceOp::kMean}, Partial()}, 2, 1);
}

class Meshes : public MultiThreadedTestCase {
 public:
  int world_size() const override { return 8; }
};

SHARD_RANKS_TEST(Meshes, ARankHasAPlaceAndAGroupOnEveryAxis) {
  const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {2, 4}, {"dp", "tp"});
  EXPECT_EQ(mesh->size(), 8);
  EXPECT_EQ(mesh->shape(), (Sizes{2, 4}));
  EXPECT_EQ(mesh->get_coordinate(), (Sizes{rank() / 4, rank() % 4}));
  EXPECT_EQ(mesh->get_local_rank("dp"), rank() / 4);
  EXPECT_EQ(mesh->get_group("dp")->global_ranks(), (std::vector<int>{rank() % 4, rank() % 4 + 4}));
  const int first = rank() / 4 * 4;
  EXPECT_EQ(mesh->get_group("tp")->global_ranks(), (std::vector<int>{first, first + 1, first + 2, first + 3}));
  EXPECT_EQ(mesh->group(), default_group());
  EXPECT_EQ(mesh->str(), "DeviceMesh((dp=2, tp=4), 'cpu')");
}

SHARD_RANKS_TEST(Meshes, ASliceHasTheAxesThroughThisRank) {
  const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {2, 2, 2}, {"pp", "dp", "tp"});
  const DeviceMeshPtr tp = mesh->slice({"tp"});
  EXPECT_EQ(tp->ranks(), (std::vector<int>{rank() / 2 * 2, rank() / 2 * 2 + 1}));
  EXPECT_EQ(tp->get_group(std::size_t{0}), mesh->get_group("tp"));
  EXPECT_EQ(tp->group(), mesh->get_group("tp"));
  const DeviceMeshPtr both = mesh->slice({"pp", "tp"});
  const int dp = rank() / 2 % 2 * 2;
  EXPECT_EQ(both->ranks(), (std::vector<int>{dp, dp + 1, dp + 4, dp + 5}));
  EXPECT_EQ(both->get_coordinate(), (Sizes{rank() / 4, rank() % 2}));
  EXPECT_EQ(both->group()->global_ranks(), both->ranks());
  EXPECT_EQ(mesh->slice({"pp", "dp", "tp"}), mesh);
  EXPECT_THAT(
      [&] {
        mesh->slice({"tp", "dp"});
      },
      RefusesWith<c10::ValueError>("must be in its order, found 'dp' after 'tp'"));
  EXPECT_THAT([&] { mesh->slice({"cp"}); }, RefusesWith<c10::ValueError>("has no dimension 'cp'"));
}

SHARD_RANKS_TEST(Meshes, RanksMayBeInAnyOrder) {
  const DeviceMeshPtr mesh = make_device_mesh(at::kCPU, {7, 3, 1, 5}, {{"", 2}, {"", 2}});
  EXPECT_EQ(mesh->is_member(), rank() % 2 == 1);
  if (!mesh->is_member()) {
    EXPECT_EQ(mesh->get_coordinate(), std::nullopt);
    EXPECT_THAT([&] { mesh->group(); }, RefusesWith<c10::ValueError>("is not on DeviceMesh((2, 2), 'cpu')"));
    return;
  }
  if (rank() == 7) {
    EXPECT_EQ(mesh->get_coordinate(), (Sizes{0, 0}));
    EXPECT_EQ(mesh->get_group(std::size_t{0})->global_ranks(), (std::vector<int>{1, 7}));
  }
}

SHARD_RANKS_TEST(Meshes, RefuseWhatIsNotAMesh) {
  const auto refuses = [](const std::vector<std::int64_t>& shape, const std::vector<std::string>& names,
                          const std::string& text) {
    EXPECT_THAT([&] { init_device_mesh(at::kCPU, shape, names); }, RefusesWith<c10::ValueError>(text));
  };
  refuses({}, {}, "a mesh needs a dimension");
  refuses({3, 3}, {}, "the ranks of a mesh should be within 0 to 7, found 8");
  refuses({2, 0}, {}, "a mesh dimension must have a rank, found size 0");
  refuses({1 << 20, 1 << 20}, {}, "a mesh has at most 1048576 ranks");
  refuses({2, 4}, {"a"}, "Found len(mesh_dim_names): 1 and len(mesh_shape):2.");
  refuses({2, 4}, {"a", "a"}, "Each mesh_dim_name must be unique, found 'a' twice");
  EXPECT_THAT(
      [] {
        make_device_mesh(at::kCPU, {0, 1, 1}, {{"", 3}});
      },
      RefusesWith<c10::ValueError>("rank 1 is on the mesh twice"));
  EXPECT_THAT(
      [] {
        make_device_mesh(at::kCPU, {0, 1, 2}, {{"", 2}});
      },
      RefusesWith<c10::ValueError>("a mesh of 2 ranks cannot have 3 ranks"));
}

SHARD_RANKS_TEST(Meshes, AreFoundWhileTheyLive) {
  const std::vector<MeshAxis> axes{{"dp", 2}, {"tp", 4}};
  const std::vector<int> ranks{0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(dtensor::find_device_mesh(at::kCPU, axes, ranks), nullptr);
  DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {2, 4}, {"dp", "tp"});
  EXPECT_EQ(dtensor::find_device_mesh(at::kCPU, axes, ranks), mesh);
  EXPECT_EQ(dtensor::find_device_mesh(at::kCUDA, axes, ranks), nullptr);
  EXPECT_EQ(dtensor::find_device_mesh(at::kCPU, {{"dp", 4}, {"tp", 2}}, ranks), nullptr);
  EXPECT_TRUE(*mesh == *init_device_mesh(at::kCPU, {2, 4}, {"dp", "tp"}));
  EXPECT_FALSE(*mesh == *init_device_mesh(at::kCPU, {4, 2}, {"dp", "tp"}));
  mesh.reset();
  EXPECT_EQ(dtensor::find_device_mesh(at::kCPU, axes, ranks), nullptr);
}

}  // namespace
}  // namespace shard::test
