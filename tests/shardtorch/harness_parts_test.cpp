// The parts of tests/support/distributed that need no ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <iostream>
#include <set>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tests/shardtorch/disabled_tests.h"
#include "tests/support/distributed/python_random.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// --- skips.h --------------------------------------------------------------------------------------------------------

TEST(SkipTable, HN012_codes_72_to_88_occur_once_each) {
  std::set<int> codes;
  for (const TestSkip& skip : test_skips()) codes.insert(skip.exit_code);
  EXPECT_EQ(test_skips().size(), 17U);
  EXPECT_EQ(codes.size(), 17U);
  EXPECT_EQ(*codes.begin(), 72);
  EXPECT_EQ(*codes.rbegin(), 88);
}

TEST(SkipTable, HN012_four_gpus_is_81) {
  EXPECT_EQ(test_skip("multi-gpu-4").exit_code, 81);
  EXPECT_EQ(test_skip("multi-gpu-4").message, "Need at least 4 CUDA devices");
  EXPECT_EQ(find_test_skip(81)->key, "multi-gpu-4");
  EXPECT_EQ(find_test_skip(10), nullptr);
}

TEST(SkipTable, HN012_nine_gpus_are_not_in_it) { EXPECT_THROW(test_skip("multi-gpu-9"), std::out_of_range); }

TEST(BackendTables, HN013_HN014_say_what_backends_cannot_and_can) {
  EXPECT_THAT(kSkipCollective.at("allgather_coalesced"), ElementsAre("mpi", "nccl", "ucc"));
  EXPECT_THAT(kSkipCollective.at("reduce"), ElementsAre());
  EXPECT_THAT(kBackendFeature.at("subgroup"), ElementsAre("gloo", "nccl", "ucc"));
  EXPECT_THAT(kBackendFeature.at("plugin"), ElementsAre());
}

int code_of_skip(const std::function<void()>& check) {
  try {
    check();
  } catch (const Skip& skip) {
    return skip.exit_code();
  }
  return 0;
}

TEST(WorldSizeSkips, HN016_two_ranks_are_small_and_three_are_not) {
  const EnvironmentGuard backend("BACKEND", "gloo");
  const EnvironmentGuard two("WORLD_SIZE", "2");
  EXPECT_EQ(code_of_skip(skip_if_small_worldsize), 73);
  const EnvironmentGuard three("WORLD_SIZE", "3");
  EXPECT_EQ(code_of_skip(skip_if_small_worldsize), 0);
}

TEST(WorldSizeSkips, HN017_three_ranks_are_odd_and_four_are_not) {
  const EnvironmentGuard backend("BACKEND", "gloo");
  const EnvironmentGuard three("WORLD_SIZE", "3");
  EXPECT_EQ(code_of_skip(skip_if_odd_worldsize), 87);
  const EnvironmentGuard four("WORLD_SIZE", "4");
  EXPECT_EQ(code_of_skip(skip_if_odd_worldsize), 0);
}

TEST(WorldSizeSkips, HN016_HN017_do_not_apply_to_mpi) {
  const EnvironmentGuard backend("BACKEND", "mpi");
  const EnvironmentGuard one("WORLD_SIZE", "1");
  EXPECT_EQ(code_of_skip(skip_if_small_worldsize), 0);
  EXPECT_EQ(code_of_skip(skip_if_odd_worldsize), 0);
}

TEST(GpuSkips, HN015_without_gpus_the_code_is_74) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there are GPUs";
  EXPECT_EQ(code_of_skip(skip_if_no_gpu), 74);
}

TEST(GpuSkips, HN020_one_gpu_more_than_there_are_skips_with_its_code) {
  const int gpus = cuda_device_count();
  if (gpus > 7) GTEST_SKIP() << "the table ends at 8 GPUs";
  EXPECT_EQ(code_of_skip([&] { skip_if_lt_x_gpu(gpus); }), 0);
  EXPECT_EQ(code_of_skip([&] { skip_if_lt_x_gpu(gpus + 1); }),
            test_skip("multi-gpu-" + std::to_string(gpus + 1)).exit_code);
}

TEST(GpuSkips, HN018_HN021_ask_only_nccl_for_gpus) {
  EXPECT_EQ(code_of_skip([] { require_n_gpus_for_nccl_backend(8, "gloo"); }), 0);
  EXPECT_EQ(code_of_skip([] { nccl_skip_if_lt_x_gpu("gloo", 8); }), 0);
  if (cuda_device_count() < 8) {
    EXPECT_EQ(code_of_skip([] { require_n_gpus_for_nccl_backend(8, "nccl"); }), 85);
    EXPECT_EQ(code_of_skip([] { nccl_skip_if_lt_x_gpu("nccl", 8); }), 85);
  }
}

TEST(GpuSkips, HN020_skip_a_plain_test) {
  SHARD_SKIP_HERE(skip_if_lt_x_gpu(8));
  EXPECT_GE(cuda_device_count(), 8);
}

TEST(OtherSkips, HN019_transformers_are_never_there) { EXPECT_EQ(code_of_skip(import_transformers_or_skip), 88); }

TEST(OtherSkips, HN027_HN028_this_is_neither_rocm_nor_windows) {
  EXPECT_EQ(code_of_skip(skip_if_rocm), 0);
  EXPECT_EQ(code_of_skip(skip_if_win32), 0);
}

TEST(Requires, HN025_gloo_is_there_and_ucc_is_not) {
  EXPECT_EQ(skip_reason(requires_gloo), std::nullopt);
  EXPECT_EQ(skip_reason(requires_ucc), "c10d was not compiled with the UCC backend");
  EXPECT_EQ(skip_reason(requires_mpi), "c10d was not compiled with the MPI backend");
}

TEST(Requires, HN026_a_version_of_nccl_that_does_not_exist_yet) {
  SHARD_SKIP_HERE(requires_nccl());
  const auto why = skip_reason([] { requires_nccl_version({99, 0, 0}, "of a test"); });
  ASSERT_TRUE(why);
  EXPECT_THAT(*why, HasSubstr("Requires NCCL version greater than or equal to: 99.0.0, found: "));
  EXPECT_THAT(*why, HasSubstr(", reason: of a test"));
}

TEST(Sandcastle, HN029_turns_a_skip_into_a_line) {
  const EnvironmentGuard sandcastle("SANDCASTLE", "1");
  bool skipped = false;
  const Output output = captured_output([&] { skipped = skip_but_pass_in_sandcastle("too slow"); });
  EXPECT_TRUE(skipped);
  EXPECT_EQ(output.err, "Skipping HN029_turns_a_skip_into_a_line on sandcastle for following reason: too slow\n");
}

TEST(Sandcastle, HN029_elsewhere_it_skips) {
  const EnvironmentGuard sandcastle("SANDCASTLE", std::nullopt);
  EXPECT_EQ(skip_reason([] { skip_but_pass_in_sandcastle("too slow"); }), "too slow");
  EXPECT_FALSE(skip_but_pass_in_sandcastle_if(false, "too slow"));
}

// --- environment.h --------------------------------------------------------------------------------------------------

TEST(Environment, HN023_blocking_wait_is_set_inside_and_restored) {
  const EnvironmentGuard async("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3");
  const EnvironmentGuard blocking("TORCH_NCCL_BLOCKING_WAIT", std::nullopt);
  {
    const NcclBlockingWait wait;
    EXPECT_EQ(variable("TORCH_NCCL_ASYNC_ERROR_HANDLING"), std::nullopt);
    EXPECT_EQ(variable("TORCH_NCCL_BLOCKING_WAIT"), "1");
  }
  EXPECT_EQ(variable("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "3");
  EXPECT_EQ(variable("TORCH_NCCL_BLOCKING_WAIT"), std::nullopt);
}

TEST(Environment, HN024_every_debug_level_is_in_force_once) {
  std::vector<int> levels;
  with_dist_debug_levels({"DETAIL", "INFO", "OFF"}, [&] { levels.push_back(static_cast<int>(c10d::debug_level())); });
  EXPECT_THAT(levels, ElementsAre(2, 1, 0));
}

TEST(Environment, HN031_timeouts_go_by_the_last_part_of_the_name) {
  const EnvironmentGuard none("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", std::nullopt);
  EXPECT_EQ(get_timeout("module.Class.test_ddp_uneven_inputs"), 400s);
  EXPECT_EQ(get_timeout("module.Class.another"), 300s);
  const EnvironmentGuard seven("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "7");
  EXPECT_EQ(get_timeout("another"), 7s);
}

TEST(Environment, HN033_output_is_captured_and_comes_back) {
  const Output output = captured_output([] {
    std::cout << "out";
    std::fputs("err", stderr);
  });
  EXPECT_EQ(output.out, "out");
  EXPECT_EQ(output.err, "err");
}

TEST(Environment, HN036_temporary_folders_come_and_go) {
  std::string path;
  {
    const TempDirectories folders;
    path = folders.path();
    EXPECT_EQ(variable("TEMP_DIR"), path);
    EXPECT_EQ(variable("INIT_METHOD"), "file://" + path + "/init_dir/shared_init_file");
    for (const char* name : {"barrier", "test_dir", "init_dir"}) {
      EXPECT_TRUE(std::filesystem::is_directory(path + "/" + name)) << name;
    }
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(variable("TEMP_DIR"), std::nullopt);
}

TEST(Environment, HN036_the_rendezvous_may_be_given) {
  const TempDirectories folders("tcp://localhost:1");
  EXPECT_EQ(variable("INIT_METHOD"), "tcp://localhost:1");
}

TEST(Environment, HN030_a_tcp_store_keeps_what_is_set) {
  const auto store = create_tcp_store();
  store->set("key", std::string("value"));
  EXPECT_EQ(store->get_to_str("key"), "value");
}

TEST(Environment, HN030_others_reach_the_masters_port_and_wait_no_longer_than_the_timeout) {
  const auto master = c10::dynamic_intrusive_pointer_cast<c10d::TCPStore>(
      create_tcp_store("localhost", 2, /*is_master=*/true, 0, 20s, /*wait_for_workers=*/false));
  const auto other = create_tcp_store("localhost", 2, /*is_master=*/false, master->getPort(), 1s);
  other->set("key", std::string("value"));
  EXPECT_EQ(master->get_to_str("key"), "value");
  EXPECT_ANY_THROW(other->get("a key that is never set"));
}

TEST(Environment, HN032_devices_on_the_local_machine) {
  EXPECT_NE(create_device(), nullptr);
  EXPECT_NE(create_device("lo"), nullptr);
  EXPECT_ANY_THROW(create_device("no such interface"));
}

TEST(Environment, HN035_a_gpu_each_or_none_for_anybody) {
  EXPECT_EQ(init_multigpu_helper(2, 4), (std::map<int, std::vector<int>>{{0, {0}}, {1, {1}}}));
  EXPECT_EQ(init_multigpu_helper(2, 1), (std::map<int, std::vector<int>>{{0, {}}, {1, {}}}));
}

TEST(Environment, HN053_subtests_run_every_combination_the_last_name_fastest) {
  std::vector<std::string> seen;
  run_subtests({{"a", {1, 2}}, {"b", {"x", "y"}}}, [&](const SubtestValues& chosen) {
    seen.push_back(std::to_string(chosen.at("a").toInt()) + chosen.at("b").toStringRef());
  });
  EXPECT_THAT(seen, ElementsAre("1x", "1y", "2x", "2y"));
}

TEST(Environment, HN053_subtests_pass_further_arguments_on) {
  double sum = 0;
  run_subtests(
      {{"a", {1.5, true}}},
      [&](const SubtestValues& chosen, int more, const std::string& text) {
        sum += (chosen.at("a").isDouble() ? chosen.at("a").toDouble() : 100) + more + static_cast<double>(text.size());
      },
      10, std::string("xyz"));
  EXPECT_EQ(sum, 1.5 + 13 + 113);
}

TEST(Environment, HN055_tensorpipe_may_use_anything_without_efa) {
  if (has_efa()) GTEST_SKIP() << "there is EFA";
  EXPECT_THAT(tp_transports(), ElementsAre());
}

TEST(DISABLED_Efa, IsThere) {
  EXPECT_TRUE(has_efa());
  EXPECT_THAT(tp_transports(), ElementsAre("shm", "uv"));
}

TEST(Environment, HN054_HN055_with_efa_tensorpipe_uses_shm_and_uv) {
  const TempFolder folder;
  folder.write("fi_info", "#!/bin/sh\n[ \"$*\" = '-p efa -t FI_EP_RDM' ]\n");
  std::filesystem::permissions(folder / "fi_info", std::filesystem::perms::owner_all);
  const EnvironmentGuard path("PATH", folder.path() + ":" + variable("PATH").value_or(""));
  const Outcome outcome = run_disabled("DISABLED_Efa.IsThere");
  EXPECT_THAT(outcome.output, HasSubstr("[  PASSED  ] 1 test"));
}

TEST(Main, HN071_under_dev_asan_no_test_runs_and_a_line_on_stderr_says_so) {
  const EnvironmentGuard asan("TEST_WITH_DEV_DBG_ASAN", "1");
  const Outcome outcome = run(this_binary()), silenced = run(this_binary() + " 2>/dev/null");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("Skip dev-asan"));
  EXPECT_EQ(silenced.output, "");
}

// --- tensors.h ------------------------------------------------------------------------------------------------------

TEST(TensorsEqual, HN071_tolerances_go_by_dtype) {
  const at::Tensor one = at::ones({1});
  EXPECT_TRUE(tensors_equal(one, one + 1e-5));
  EXPECT_FALSE(tensors_equal(one, one + 2e-5));
  EXPECT_TRUE(tensors_equal(one.to(at::kDouble), one.to(at::kDouble) + 1.9e-7));
  EXPECT_FALSE(tensors_equal(one.to(at::kDouble), one.to(at::kDouble) + 1e-5));
  EXPECT_FALSE(tensors_equal(one.to(at::kLong), one.to(at::kLong) + 1));
}

TEST(TensorsEqual, HN071_sizes_and_dtypes_count) {
  EXPECT_FALSE(tensors_equal(at::ones({1, 2}), at::ones({2})));
  EXPECT_FALSE(tensors_equal(at::ones({2}), at::ones({2}, at::kDouble)));
}

TEST(SparseReduce, HN034_sums_count_down_along_the_first_dimension) {
  const auto tests = simple_sparse_reduce_tests(/*rank=*/1, /*world_size=*/2);
  ASSERT_EQ(tests.size(), 6U);
  EXPECT_TRUE(tensors_equal(tests[0].first[0].to_dense(), at::tensor({1.F, 1.F})));
  EXPECT_TRUE(tensors_equal(tests[0].second[0].to_dense(), at::tensor({2.F, 1.F})));
  EXPECT_TRUE(tensors_equal(tests[1].second[0].to_dense(), at::tensor({2.F, 0.F, 1.F, 0.F}).view({2, 2})));
  EXPECT_TRUE(tensors_equal(tests[3].second[0].to_dense(), at::tensor({2.F, 2.F, 1.F, 1.F}).view({2, 2})));
}

TEST(ForwardInputs, HN065_each_module_keeps_its_input) {
  ForwardInputs inputs;
  SaveForwardInputsModel model(inputs, /*cast_forward_inputs=*/true);
  const at::Tensor x = at::ones({2, 100}, at::kDouble);
  EXPECT_EQ(model.forward(x).scalar_type(), at::kFloat);
  EXPECT_EQ(inputs.size(), 3U);
  EXPECT_TRUE(inputs.at(&model).is_same(x));
  EXPECT_TRUE(inputs.at(model.c1.get()).is_same(x));
  EXPECT_EQ(inputs.at(model.c2.get()).sizes(), x.sizes());
}

TEST(DdpLogging, HN022_the_first_line_of_the_error_is_looked_for) {
  const std::map<std::string, std::string> logged = {{"iteration", "1"}, {"has_error", "1"}, {"error", "it broke: x"}};
  EXPECT_TRUE(verify_ddp_error_logged(logged, "it broke\nException raised from f at g"));
  EXPECT_FALSE(verify_ddp_error_logged(logged, "it burst"));
  EXPECT_FALSE(verify_ddp_error_logged(std::map<std::string, std::string>{{"error", "it broke"}}, "it broke"));
}

TEST(DdpLogging, HN022_the_loggers_own_data_is_taken) {
  c10::DDPLoggingData logged;
  logged.ints_map = {{"iteration", 3}, {"has_error", 1}};
  logged.strs_map = {{"error", "it broke: x"}};
  EXPECT_TRUE(verify_ddp_error_logged(logged, "it broke"));
  EXPECT_FALSE(verify_ddp_error_logged(logged, "it burst"));
  logged.ints_map.erase("iteration");
  EXPECT_FALSE(verify_ddp_error_logged(logged, "it broke"));
}

// --- sharded_tensor_test.h ------------------------------------------------------------------------------------------

std::vector<int> owners_of(const ShardingSpec& spec) {
  std::vector<int> owners;
  for (const RemoteDevice& placement : as_chunk(spec)->placements()) owners.push_back(placement.rank().value());
  return owners;
}

TEST(SpecsForTest, HN010_owners_are_shuffled_anew_for_every_dim) {
  const auto place = [](int rank) { return RemoteDevice(rank, at::kCPU); };
  const auto specs = chunk_sharding_specs_for_test({0, 1, 1, 0}, 31, place);
  ASSERT_EQ(specs.size(), 4U);
  EXPECT_THAT(owners_of(*specs[0]), ElementsAre(2, 3, 1, 0));
  EXPECT_THAT(owners_of(*specs[1]), ElementsAre(3, 1, 0, 2));
  EXPECT_THAT(owners_of(*specs[2]), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(owners_of(*specs[3]), ElementsAre(3, 2, 1, 0));
  EXPECT_EQ(as_chunk(*specs[1])->dim(), 1);
}

TEST(SpecsForTest, HN010_orders_are_pythons_for_any_seed) {
  const auto place = [](int rank) { return RemoteDevice(rank, at::kCPU); };
  // random.Random(seed + i).shuffle of one list, i = 0, 1, 2, by CPython 3.11.
  const std::map<int, std::vector<std::vector<int>>> python = {
      {0, {{2, 0, 1, 3}, {3, 2, 1, 0}, {2, 1, 0, 3}}},
      {1, {{3, 0, 2, 1}, {0, 2, 1, 3}, {3, 0, 1, 2}}},
      {6, {{3, 2, 1, 0}, {0, 2, 3, 1}, {0, 3, 1, 2}}},
  };
  for (const auto& [seed, orders] : python) {
    const auto specs = chunk_sharding_specs_for_test({0, 1, 0}, seed, place);
    for (std::size_t i = 0; i < orders.size(); ++i) EXPECT_EQ(owners_of(*specs[i]), orders[i]) << seed;
  }
}

TEST(PythonRandom, HN010_draws_as_cpython_does) {
  PythonRandom wide((std::uint64_t{1} << 40) + 7);  // A seed of two words.
  std::vector<std::uint32_t> drawn;
  for (int i = 0; i < 5; ++i) drawn.push_back(wide.below(1000));
  EXPECT_THAT(drawn, ElementsAre(628, 765, 834, 960, 967));
  std::vector<int> ten{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  PythonRandom(42).shuffle(ten);
  EXPECT_THAT(ten, ElementsAre(7, 3, 2, 8, 5, 6, 9, 4, 0, 1));
}

TEST(ShardedModels, HN011_without_a_spec_the_sharded_attributes_are_empty) {
  MyShardedModel1 model;
  EXPECT_FALSE(model.sharded_tensor1.defined());
  EXPECT_EQ(model.sharded_attributes()[0].name, "sharded_tensor1");
  EXPECT_EQ(model.submodule->sharded_attributes()[0].name, "sharded_tensor2");
  EXPECT_EQ(model.named_parameters().keys(), (std::vector<std::string>{"random_tensor1", "submodule.random_tensor2"}));
}

}  // namespace
}  // namespace shard::test
