// DTensors in checkpoints and in files of torch.save, on ranks that are threads.
#include <filesystem>

#include "libshard/core/error.h"
#include "shardtorch/checkpoint/checkpoint.h"
#include "tests/shardtorch/dtensor_fixture.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace shard::test {
namespace {

using dtensor::DeviceMeshPtr;
using dtensor::distribute_tensor;
using dtensor::init_device_mesh;
using dtensor::make_device_mesh;

StateDict state_of(std::initializer_list<std::pair<std::string, at::Tensor>> items) {
  StateDict state;
  for (const auto& [name, tensor] : items) state.insert(name, tensor);
  return state;
}

DTensor cut(const at::Tensor& whole, const DeviceMeshPtr& mesh, const Placements& placements) {
  return distribute_tensor(whole, mesh, placements, std::nullopt);
}

class DTensorCheckpoints : public ::testing::Test {
 protected:
  std::string path(const std::string& name = "saved") const { return folder_ / name; }

  TempFolder folder_;
};

const checkpoint::SaveOptions kFast{.sync = false};

TEST_F(DTensorCheckpoints, AnyPlacementsAreLoadedIntoAnyOthers) {
  std::vector<std::pair<at::Tensor, Placements>> saved;
  spawn_threads_and_init_comms(4, [&](int rank) {
    RandomCases random(40);
    const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {2, 2});
    StateDict state;
    for (int i = 0; i < 30; ++i) {
      const Sizes shape = random.shape();
      const Placements placements = random.placements(2, shape.size());
      state.insert(c10::str("t", i), cut(numbered(shape), mesh, placements).as_tensor());
      if (rank == 0) saved.emplace_back(numbered(shape), placements);
    }
    checkpoint::save(state, path(), nullptr, kFast);
  });
  for (const int ranks : {4, 3, 1}) {
    spawn_threads_and_init_comms(ranks, [&](int) {
      RandomCases random(41);
      const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {ranks});
      StateDict state;
      std::vector<DTensor> tensors;
      for (const auto& [whole, placements] : saved) {
        const Placements now = random.placements(1, whole.sizes().size());
        tensors.push_back(dtensor::full(whole.sizes(), -1, mesh, now, {.dtype = at::kDouble}));
        state.insert(c10::str("t", tensors.size() - 1), tensors.back().as_tensor());
      }
      checkpoint::load(state, path());
      for (std::size_t i = 0; i < saved.size(); ++i) expect_part(tensors[i], saved[i].first);
    });
  }
}

TEST_F(DTensorCheckpoints, ReplicasAreWrittenOnceByRanksInTurn) {
  spawn_threads_and_init_comms(4, [&](int) {
    const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {4});
    StateDict state;
    for (int i = 0; i < 4; ++i) {
      state.insert(c10::str("t", i), cut(numbered({100, 100}), mesh, {Replicate()}).as_tensor());
    }
    checkpoint::save(state, path(), nullptr, kFast);
  });
  int files = 0;
  for (const auto& file : std::filesystem::directory_iterator(path())) {
    if (file.path().extension() != ".distcp") continue;
    ++files;
    EXPECT_GT(file.file_size(), 80'000U) << file.path();
    EXPECT_LT(file.file_size(), 90'000U) << file.path();
  }
  EXPECT_EQ(files, 4);
}

TEST_F(DTensorCheckpoints, ShardedTensorsAndPlainOnesReadThemAndAreReadByThem) {
  const at::Tensor whole = numbered({6, 5});
  spawn_threads_and_init_comms(2, [&](int rank) {
    const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {2});
    const ShardingSpecPtr columns = chunk_spec(1, {RemoteDevice(1, at::kCPU), RemoteDevice(0, at::kCPU)});
    const ShardedTensor sharded(columns, whole.sizes(), {.dtype = at::kDouble});
    for (const auto& shard : sharded.local_shards())
      at::Tensor(shard.tensor).copy_(narrow_tensor(whole, shard.metadata));
    checkpoint::save(
        state_of({{"a", cut(whole, mesh, {CutBy{0}}).as_tensor()}, {"b", sharded.as_tensor()}, {"c", whole}}), path(),
        nullptr, kFast);

    const ShardedTensor a(columns, whole.sizes(), {.dtype = at::kDouble});
    const DTensor b = dtensor::zeros({6, 5}, mesh, {CutBy{0}}, {.dtype = at::kDouble});
    const DTensor c = dtensor::zeros({6, 5}, mesh, {StridedShard{0, 2}}, {.dtype = at::kDouble});
    StateDict state = state_of({{"a", a.as_tensor()}, {"b", b.as_tensor()}, {"c", c.as_tensor()}});
    checkpoint::load(state, path());
    EXPECT_TRUE(a.local_tensor().equal(whole.narrow(1, rank == 1 ? 0 : 3, rank == 1 ? 3 : 2)));
    expect_part(b, whole);
    expect_part(c, whole);
    const at::Tensor plain = at::zeros({6, 5}, at::kDouble);
    StateDict other = state_of({{"a", plain}});
    checkpoint::load(other, path());
    EXPECT_TRUE(plain.equal(whole));
  });
}

TEST_F(DTensorCheckpoints, FilesOfRanksHoldDTensorsWhereAllThatIsCutAreThose) {
  const at::Tensor whole = numbered({9, 4}), plain = numbered({3});
  const Placements nested{CutBy{0}, CutBy{0}}, replica{Replicate(), CutBy{1}};
  spawn_threads_and_init_comms(4, [&](int rank) {
    const DeviceMeshPtr square = make_device_mesh(at::kCPU, {0, 1, 2, 3}, {{"dp", 2}, {"tp", 2}});
    const DeviceMeshPtr line = make_device_mesh(at::kCPU, {3, 1, 2, 0}, {{"all", 4}});
    StateDict state = state_of({{"nested", cut(whole, square, nested).as_tensor()},
                                {"replica", cut(whole, square, replica).as_tensor()},
                                {"line", cut(whole, line, {StridedShard{0, 2}}).as_tensor()},
                                {"plain", plain}});
    checkpoint::save(state, path(), nullptr, {.format = "torch-ranks", .sync = false});
    const StateDict own = load_state_file(path() + c10::str("/rank-0000", rank, "-of-00004.pt"));
    for (const auto& [name, mesh, placements] :
         {std::tuple("nested", square, nested), {"replica", square, replica}, {"line", line, {StridedShard{0, 2}}}}) {
      const DTensor found = DTensor::of(own[name].toTensor());
      ASSERT_TRUE(found.defined()) << name;
      EXPECT_EQ(found.device_mesh(), mesh) << name;
      EXPECT_EQ(found.placements(), placements) << name;
      expect_part(found, whole);
    }
    EXPECT_TRUE(own["plain"].toTensor().equal(plain));
  });
  spawn_threads_and_init_comms(3, [&](int) {
    const DTensor tensor = dtensor::zeros({9, 4}, init_device_mesh(at::kCPU, {3}), {CutBy{1}}, {.dtype = at::kDouble});
    StateDict state = state_of({{"line", tensor.as_tensor()}});
    checkpoint::load(state, path());
    expect_part(tensor, whole);
  });
}

TEST_F(DTensorCheckpoints, FilesOfRanksHoldShardedTensorsWhereSomeAreOrAMeshHasNotAllRanks) {
  const at::Tensor whole = numbered({6, 2});
  spawn_threads_and_init_comms(3, [&](int rank) {
    const DeviceMeshPtr part = make_device_mesh(at::kCPU, {2, 0}, {{"", 2}});
    checkpoint::save(state_of({{"a", cut(whole, part, {CutBy{0}}).as_tensor()}}), path(), nullptr,
                     {.format = "torch-ranks", .sync = false});
    const StateDict own = load_state_file(path() + c10::str("/rank-0000", rank, "-of-00003.pt"));
    const ShardedTensor found = ShardedTensor::of(own["a"].toTensor());
    ASSERT_TRUE(found.defined());
    EXPECT_TRUE(found.full_tensor().equal(whole));
  });
  spawn_threads_and_init_comms(2, [&](int rank) {
    const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {2});
    const ShardedTensor sharded(chunk_spec(0, {"rank:0/cpu", "rank:1/cpu"}), {4}, {.dtype = at::kDouble});
    checkpoint::save(state_of({{"a", cut(whole, mesh, {CutBy{1}}).as_tensor()}, {"b", sharded.as_tensor()}}),
                     path("mixed"), nullptr, {.format = "torch-ranks", .sync = false});
    const StateDict own = load_state_file(path("mixed") + c10::str("/rank-0000", rank, "-of-00002.pt"));
    EXPECT_TRUE(ShardedTensor::of(own["a"].toTensor()).defined());
  });
}

TEST_F(DTensorCheckpoints, RanksOutsideOfTheMeshTakePart) {
  const at::Tensor whole = numbered({5, 2});
  spawn_threads_and_init_comms(3, [&](int) {
    const DeviceMeshPtr mesh = make_device_mesh(at::kCPU, {2, 0}, {{"", 2}});
    checkpoint::save(state_of({{"a", cut(whole, mesh, {CutBy{0}}).as_tensor()}}), path(), nullptr, kFast);
    const DTensor again = dtensor::zeros({5, 2}, mesh, {Replicate()}, {.dtype = at::kDouble});
    StateDict state = state_of({{"a", again.as_tensor()}});
    checkpoint::load(state, path());
    if (mesh->is_member()) {
      EXPECT_TRUE(again.local().equal(whole));
    }
  });
}

TEST_F(DTensorCheckpoints, PartialIsRefused) {
  spawn_threads_and_init_comms(2, [&](int) {
    const DTensor tensor = dtensor::zeros({4}, init_device_mesh(at::kCPU, {2}), {Partial()});
    StateDict state = state_of({{"a", tensor.as_tensor()}});
    expect_error(ErrorCode::kUnsupported, "DTensors with Partial placements",
                 [&] { checkpoint::save(state, path(), nullptr, kFast); });
    expect_error(ErrorCode::kUnsupported, "its placements are [P(sum)]: redistribute it first",
                 [&] { save_state(state); });
  });
}

TEST(DTensorStates, AreLoadedOnTheSameMesh) {
  spawn_threads_and_init_comms(4, [](int) {
    const DeviceMeshPtr square = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    const DeviceMeshPtr reversed = make_device_mesh(at::kCPU, {3, 2, 1, 0}, {{"", 4}});
    const DTensor a = cut(numbered({7, 3}).requires_grad_(), square, {CutBy{0}, CutBy{0}});
    const DTensor b = cut(numbered({3, 9}, at::kInt), reversed, {StridedShard{1, 2}});
    const StateDict state =
        state_of({{"a", a.as_tensor()}, {"again", a.as_tensor()}, {"b", b.as_tensor()}, {"local", a.local()}});
    const StateDict found = load_state(save_state(state));
    const DTensor a2 = DTensor::of(found["a"].toTensor()), b2 = DTensor::of(found["b"].toTensor());
    EXPECT_EQ(a2.device_mesh(), square);
    EXPECT_EQ(a2.layout(), a.layout());
    EXPECT_TRUE(a2.local().equal(a.local()));
    EXPECT_TRUE(a2.requires_grad());
    EXPECT_TRUE(a2.is_same(DTensor::of(found["again"].toTensor())));
    EXPECT_TRUE(found["local"].toTensor().is_alias_of(a2.local()));
    EXPECT_EQ(b2.device_mesh(), reversed);
    EXPECT_EQ(b2.layout(), b.layout());
    EXPECT_TRUE(b2.full_tensor().equal(numbered({3, 9}, at::kInt)));
  });
}

TEST(DTensorStates, NeedTheirMeshAndTheirPlaceOnIt) {
  std::vector<std::string> files(2);
  spawn_threads_and_init_comms(2, [&](int rank) {
    const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    files[static_cast<std::size_t>(rank)] =
        save_state(state_of({{"a", cut(numbered({4}), mesh, {CutBy{0}}).as_tensor()}}));
  });
  EXPECT_THAT([&] { load_state(files[0]); },
              RefusesWith<c10::Error>("Need to initialize default process group using \"init_process_group\" before "
                                      "loading DTensor"));
  spawn_threads_and_init_comms(2, [&](int rank) {
    EXPECT_THAT([&] { load_state(files[static_cast<std::size_t>(rank)]); },
                RefusesWith<c10::Error>("Need to initialize the device mesh before loading DTensor: "
                                        "DeviceMesh((dp=2), 'cpu') of ranks [0, 1]"));
    const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    const int other = 1 - rank;
    EXPECT_THAT([&] { load_state(files[static_cast<std::size_t>(other)]); },
                RefusesWith<c10::Error>(c10::str("Coordinate on the mesh at save time was [", other,
                                                 "], but at load time was [", rank, "]")));
  });
}

/// The wholes of the state that four ranks of this torch saved on a 2 by 2 mesh, or on a line.
std::vector<std::pair<std::string, at::Tensor>> golden_wholes(const std::string& torch, const std::string& name) {
  std::vector<std::pair<std::string, at::Tensor>> wholes;
  spawn_threads_and_init_comms(4, [&](int rank) {
    const DeviceMeshPtr square = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    const DeviceMeshPtr line = init_device_mesh(at::kCPU, {4}, {"dp"});
    const std::string file = c10::str(SHARD_TEST_DATA "/golden/", torch, "/", name, "/rank_", rank, ".pt");
    for (const auto& item : load_state_file(file)) {
      const at::Tensor whole = DTensor::of(item.value().toTensor()).full_tensor();
      if (rank == 0) wholes.emplace_back(item.key(), whole);
    }
  });
  return wholes;
}

TEST(DTensorStates, OfPythonAreTheSameFromEveryTorchAndInAnyPlacements) {
  const auto expected = golden_wholes("2.11.0", "ranks_mesh_r4");
  EXPECT_EQ(expected.size(), 3U);
  for (const std::string torch : {"2.4.1", "2.8.0", "2.11.0", "2.15.0"}) {
    for (const std::string name : {"ranks_mesh_r4", "ranks_replica_r4", "ranks_strided_r4"}) {
      if (!std::filesystem::exists(c10::str(SHARD_TEST_DATA "/golden/", torch, "/", name))) continue;
      const auto found = golden_wholes(torch, name);
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].first, expected[i].first);
        EXPECT_TRUE(found[i].second.equal(expected[i].second)) << torch << ' ' << name << ' ' << found[i].first;
      }
    }
  }
}

}  // namespace
}  // namespace shard::test
