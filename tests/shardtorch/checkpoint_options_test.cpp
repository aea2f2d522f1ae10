// Checkpoints: options of loading (names, casts, parts of modules), progress, stops, the distribution of writing, and
// memory that is not packed. Ranks are threads.
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <fstream>

#include "shardtorch/checkpoint/tensor_memory.h"
#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/modules.h"
#include "tests/shardtorch/checkpoint_fixture.h"

namespace shard::test {
namespace {

using checkpoint::LoadOptions;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// --- Loading --------------------------------------------------------------------------------------------------------

TEST_F(Checkpoint, IsLoadedUnderOtherNames) {
  as_ranks(2, [&](int) {
    const at::Tensor whole = content({4, 3}, at::kFloat);
    checkpoint::save(state_of({{"old.w", value(cut(whole, chunk_spec(0, placements(2))))}, {"old.step", 7}}), path());
    StateDict state = state_of({{"w", value(blank(whole, chunk_spec(1, placements(2))))}, {"step", 0}});
    const LoadOptions options{.rename = [](const std::string& name) { return "old." + name; }};
    EXPECT_THAT(checkpoint::load(state, path(), nullptr, options).unexpected, IsEmpty());
    expect_content(ShardedTensor::of(state["w"].toTensor()), whole);
    EXPECT_EQ(state["step"].toInt(), 7);
  });
}

TEST_F(Checkpoint, IsCastWhereThatIsAskedFor) {
  as_ranks(2, [&](int) {
    const at::Tensor saved = at::arange(12, at::kFloat).add(0.1).reshape({4, 3});
    checkpoint::save(state_of({{"w", saved}, {"v", value(cut(saved, chunk_spec(0, placements(2))))}}), path());
    const at::Tensor half = at::zeros({4, 3}, at::kBFloat16);
    const ShardedTensor wide = sharded_tensor::zeros(chunk_spec(1, placements(2)), {4, 3}, {.dtype = at::kDouble});
    StateDict state = state_of({{"w", half}, {"v", value(wide)}});
    checkpoint::load(state, path(), nullptr, {.cast = true});
    EXPECT_TRUE(half.equal(saved.to(at::kBFloat16)));
    expect_content(wide, saved.to(at::kDouble));
  });
}

TEST_F(Checkpoint, NamesWhatNobodyAskedFor) {
  for (const std::string format : {"dcp", "torch-ranks"}) {
    as_ranks(2, [&](int) {
      c10::impl::GenericDict inner(c10::StringType::get(), c10::AnyType::get());
      inner.insert("w", at::ones({2}));
      inner.insert("lr", 0.5);
      checkpoint::save(
          state_of({{"a", at::ones({2})}, {"b", at::ones({3})}, {"inner", inner}, {"list", std::vector<double>{1, 2}}}),
          path(format), nullptr, as(format));
      StateDict state = state_of({{"b", at::zeros({3})}, {"list", c10::IValue()}});
      EXPECT_THAT(checkpoint::load(state, path(format)).unexpected, UnorderedElementsAre("a", "inner.w", "inner.lr"));
    });
  }
}

TEST_F(Checkpoint, NamesNothingThatOtherRanksAloneHave) {
  as_ranks(2, [&](int rank) {
    const at::Tensor whole = content({4}, at::kFloat);
    StateDict saved = state_of({{"w", value(cut(whole, chunk_spec(0, placements(2))))}});
    if (rank == 1) saved.insert("extra", at::ones({2}));
    if (rank == 0) std::filesystem::create_directory(path());
    default_group()->barrier();
    save_state_file(saved, path() + c10::str("/rank-", rank, ".pt"));
    default_group()->barrier();
    StateDict state = state_of({{"w", value(blank(whole, chunk_spec(0, placements(2))))}});
    const std::vector<std::string> unexpected = checkpoint::load(state, path()).unexpected;
    EXPECT_EQ(unexpected, rank == 1 ? std::vector<std::string>{"extra"} : std::vector<std::string>());
  });
}

TEST_F(Checkpoint, RanksHaveTheirOwnOfTensorsThatDifferAndOthersNone) {
  std::filesystem::create_directory(path());
  as_ranks(2, [&](int rank) {
    const ShardedTensor sharded = cut(content({4}, at::kFloat), chunk_spec(0, placements(2)));
    save_state_file(state_of({{"w", value(sharded)}, {"own", at::full({2}, rank)}}),
                    path() + c10::str("/rank-", rank, ".pt"));
  });
  const auto load = [&] {
    StateDict state = state_of({{"own", at::full({2}, -1)}});
    checkpoint::load(state, path());
    EXPECT_TRUE(state["own"].toTensor().eq(default_group()->rank()).all().item<bool>());
  };
  as_ranks(2, [&](int) { load(); });
  as_ranks(3, [&](int) { expect_error(ErrorCode::kInvalidArgument, "has several tensors 'own'", load); });
}

TEST_F(Checkpoint, HasNoEmptyDictsAndMissesNone) {
  as_ranks(2, [&](int) {
    checkpoint::save(state_of({{"w", at::ones({2})}}), path(), nullptr, as("dcp"));
    const c10::impl::GenericDict nothing(c10::StringType::get(), c10::AnyType::get());
    StateDict state = state_of({{"w", at::zeros({2})}, {"none", nothing}});
    EXPECT_THAT(checkpoint::load(state, path()).missing, IsEmpty());
    EXPECT_TRUE(state["none"].toGenericDict().empty());
  });
}

struct Block : torch::nn::Module {
  Block()
      : first(register_module("first", torch::nn::Linear(4, 6))),
        second(register_module("second", torch::nn::Linear(6, 2))) {}
  torch::nn::Linear first, second;
};

/// Ranks that are threads draw from one generator, in any order.
void fill_alike(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& each : module.parameters()) each.copy_(at::arange(each.numel()).view(each.sizes()).add(each.dim()));
}

TEST_F(Checkpoint, FillsAModuleFromAPartOfIt) {
  as_ranks(2, [&](int) {
    Block saved;
    fill_alike(saved);
    checkpoint::save(state_dict(saved), path());
    torch::nn::Linear part(6, 2);
    shard_parameter(*part, "weight", part->weight, chunk_spec(1, placements(2)));
    const checkpoint::LoadResult result = checkpoint::load(*part, path(), "second");
    EXPECT_THAT(result.unexpected, IsEmpty());
    EXPECT_TRUE(part->bias.equal(saved.second->bias));
    expect_content(ShardedTensor::of(part->weight), saved.second->weight.detach());
    torch::nn::Linear plain(torch::nn::LinearOptions(6, 2).bias(false));
    EXPECT_THAT(checkpoint::load(*plain, path(), "second").unexpected, ElementsAre("second.bias"));
    expect_error(ErrorCode::kNotFound, "lacks 'third.weight'", [&] { checkpoint::load(*plain, path(), "third"); });
  });
}

// --- Progress and stops ---------------------------------------------------------------------------------------------

TEST_F(Checkpoint, TellsHowFarItIs) {
  as_ranks(2, [&](int) {
    const at::Tensor whole = content({256, 64}, at::kFloat);
    std::int64_t calls = 0, done = 0, total = 0;
    const checkpoint::OnProgress note = [&](std::int64_t done_now, std::int64_t total_now) {
      EXPECT_GE(done_now, done);
      ++calls;
      done = done_now;
      total = total_now;
    };
    checkpoint::SaveOptions options = as("dcp");
    options.on_progress = note;
    checkpoint::save(state_of({{"w", value(cut(whole, chunk_spec(0, placements(2))))}}), path(), nullptr, options);
    EXPECT_GE(calls, 1);
    EXPECT_EQ(done, 128 * 64 * 4);
    EXPECT_EQ(total, done);
    calls = done = total = 0;
    StateDict state = state_of({{"w", value(blank(whole, chunk_spec(1, placements(2))))}});
    checkpoint::load(state, path(), nullptr, {.on_progress = note});
    EXPECT_GE(calls, 1);
    EXPECT_EQ(done, 256 * 32 * 4);
    EXPECT_EQ(total, done);
  });
}

TEST_F(Checkpoint, EndsOnAllRanksWhereOneIsStopped) {
  as_ranks(2, [&](int rank) {
    std::stop_source stop;
    if (rank == 1) stop.request_stop();
    checkpoint::SaveOptions options = as("dcp");
    const StateDict saved = state_of({{"w", at::ones({3})}});
    options.stop = stop.get_token();
    expect_error(ErrorCode::kInterrupted, "", [&] { checkpoint::save(saved, path(), nullptr, options); });
    EXPECT_THAT(names_in(folder_.path()), IsEmpty());
    default_group()->barrier();
    options.stop = {};
    checkpoint::save(saved, path(), nullptr, options);
    StateDict state = state_of({{"w", at::zeros({3})}});
    expect_error(ErrorCode::kInterrupted, "",
                 [&] { checkpoint::load(state, path(), nullptr, {.stop = stop.get_token()}); });
    EXPECT_EQ(state["w"].toTensor().sum().item<double>(), 0);
  });
}

TEST_F(Checkpoint, EndsOnAllRanksWhereACallbackThrows) {
  as_ranks(2, [&](int rank) {
    checkpoint::SaveOptions options = as("dcp");
    if (rank == 1) {
      options.on_progress = [](std::int64_t, std::int64_t) { throw Error(ErrorCode::kInterrupted, "enough"); };
    }
    const at::Tensor whole = content({64, 4}, at::kFloat);
    expect_error(ErrorCode::kInterrupted, "enough", [&] {
      checkpoint::save(state_of({{"w", value(cut(whole, chunk_spec(0, placements(2))))}}), path(), nullptr, options);
    });
  });
  EXPECT_THAT(names_in(folder_.path()), IsEmpty());
}

// --- The distribution of writing ------------------------------------------------------------------------------------

TEST_F(Checkpoint, SpreadsWhatAllRanksHaveOverThem) {
  as_ranks(4, [&](int) {
    StateDict state;
    for (int i = 0; i < 8; ++i) state.insert(c10::str("w", i), content({1024}, at::kInt, i));
    // Rank 0 has 16 KiB to write by itself, so the others write seven of the eight.
    const ShardingSpecPtr on_first = enumerable_spec({ShardMetadata({0}, {4096}, on(0))});
    state.insert("own", value(sharded_tensor::ones(on_first, {4096})));
    checkpoint::save(state, path(), nullptr, as("dcp"));
    StateDict loaded = state_of({{"w5", at::zeros({1024}, at::kInt)}});
    checkpoint::load(loaded, path());
    EXPECT_TRUE(loaded["w5"].toTensor().equal(content({1024}, at::kInt, 5)));
  });
  for (int rank = 0; rank < 4; ++rank) {
    const auto bytes = std::filesystem::file_size(path() + c10::str("/__", rank, "_0.distcp"));
    EXPECT_GE(bytes, 8U << 10) << rank;
    EXPECT_LE(bytes, 28U << 10) << rank;
  }
}

// --- Memory that is not packed --------------------------------------------------------------------------------------

/// The largest memory of this process since the last call, in bytes; restarts the measurement.
std::int64_t take_peak() {
  std::ifstream status("/proc/self/status");
  std::string word;
  std::int64_t kilobytes = 0;
  while (status >> word) {
    if (word == "VmHWM:") status >> kilobytes;
  }
  std::ofstream("/proc/self/clear_refs") << "5";
  return kilobytes << 10;
}

TEST_F(Checkpoint, CopiesNoTensorWholeThatLiesInStrides) {
  constexpr std::int64_t kSide = 4096, kBytes = kSide * kSide * 4;
  as_ranks(1, [&](int) {
    const at::Tensor saved = at::arange(kSide * kSide, at::kInt).reshape({kSide, kSide}).t();
    take_peak();
    const std::int64_t before = take_peak();
    checkpoint::SaveOptions options = as("dcp");
    options.max_memory_bytes = 8 << 20;
    checkpoint::save(state_of({{"w", saved}}), path(), nullptr, options);
    EXPECT_LT(take_peak() - before, kBytes / 2);
    const at::Tensor filled = at::zeros({kSide, kSide}, at::kInt).t();
    take_peak();
    const std::int64_t ready = take_peak();
    StateDict state = state_of({{"w", filled}});
    checkpoint::load(state, path(), nullptr, {.max_memory_bytes = 8 << 20});
    EXPECT_LT(take_peak() - ready, kBytes / 2);
    EXPECT_TRUE(filled.equal(saved));
  });
}

std::span<const std::byte> bytes_of(const at::Tensor& packed) {
  return {static_cast<const std::byte*>(packed.const_data_ptr()), packed.nbytes()};
}

std::vector<at::Tensor> tensors_not_packed() {
  const at::Tensor whole = content({5, 4, 3}, at::kFloat);
  const at::Tensor complex = at::view_as_complex(content({3, 2, 2}, at::kByte).to(at::kDouble)).conj();
  return {whole.permute({2, 0, 1}), whole.transpose(0, 1), whole.narrow(2, 1, 2), complex};
}

TEST(TensorMemory, ReadsAnyPartOfTensorsThatAreNotPacked) {
  for (const at::Tensor& tensor : tensors_not_packed()) {
    const at::Tensor packed = tensor.resolve_conj().contiguous();
    const auto bytes = bytes_of(packed);
    checkpoint::TensorMemory memory;
    memory.add(tensor);
    for (std::size_t begin = 0; begin < bytes.size(); begin += 5) {
      for (std::size_t end = begin + 1; end <= bytes.size(); end += 7) {
        std::vector<std::byte> read(end - begin);
        memory.read_at(static_cast<std::int64_t>(begin), read);
        ASSERT_TRUE(std::ranges::equal(read, bytes.subspan(begin, end - begin))) << begin << " to " << end;
      }
    }
    EXPECT_EQ(memory.stages(), 1U);
  }
}

TEST(TensorMemory, OffersPartsOfOneTensorThatLiesPacked) {
  const at::Tensor first = content({4, 3}, at::kFloat), second = content({2}, at::kFloat);
  checkpoint::TensorMemory memory;
  memory.add(first);
  memory.add(second);
  memory.add(content({3, 4}, at::kFloat).t());
  EXPECT_EQ(memory.in_memory(8, 40).data(), static_cast<std::byte*>(first.mutable_data_ptr()) + 8);
  EXPECT_EQ(memory.in_memory(8, 40).size(), 40U);
  EXPECT_EQ(memory.in_memory(48, 8).data(), second.mutable_data_ptr());
  EXPECT_TRUE(memory.in_memory(44, 8).empty());  // The bytes of two tensors.
  EXPECT_TRUE(memory.in_memory(56, 4).empty());  // Not packed.
}

TEST(TensorMemory, WritesTensorsThatAreNotPackedInPartsThatCutElements) {
  for (const at::Tensor& tensor : tensors_not_packed()) {
    const at::Tensor wanted = tensor.resolve_conj().clone(at::MemoryFormat::Contiguous);
    const auto bytes = bytes_of(wanted);
    tensor.zero_();
    checkpoint::TensorMemory memory;
    memory.add(tensor);
    for (std::size_t begin = 0; begin < bytes.size(); begin += 11) {
      memory.write_at(static_cast<std::int64_t>(begin),
                      bytes.subspan(begin, std::min<std::size_t>(11, bytes.size() - begin)));
    }
    EXPECT_TRUE(tensor.equal(wanted));
  }
}

}  // namespace
}  // namespace shard::test
