#include "formats/megatron/reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/megatron/merge.h"
#include "formats/torch/check_saved.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard::megatron {

namespace {

/// The order of queries, keys and values changed with version 2.0.
void check_version(const Catalog& catalog, const RankStates& rank) {
  const Value* const version = find_key(*rank.root, "checkpoint_version");
  const bool is_number = version != nullptr && version->kind == ValueKind::kFloat;
  const bool is_integer = version != nullptr && version->kind == ValueKind::kInt;
  const double number = is_number ? version->real : is_integer ? static_cast<double>(version->number) : 0;
  if (number >= 2) return;
  throw Error(ErrorCode::kUnsupported, "cannot join a Megatron-LM save before checkpoint_version 2.0")
      .in_file(catalog.files[rank.file].path)
      .because("queries, keys and values lie in another order there")
      .found(version == nullptr ? "none" : fmt::format("{}", number));
}

class MegatronReader final : public Reader {
 public:
  MegatronReader(const Source& source, const OpenOptions& options)
      : folder_(find_save_folder(source)), files_(*source.store, catalog_, {folder_.path, true, nullptr}) {
    catalog_.format = "megatron";
    Save save = open_ranks(options);
    for (RankStates& rank : save.ranks) read_chunks(catalog_, rank, save.arguments.stages.chunks);
    check_save(catalog_, save);
    open_optimizers(*source.store, save);
    describe(save);
    merge(catalog_, files_, save);
    validate_catalog(catalog_, *options.findings);
  }

  const Catalog& catalog() const override { return catalog_; }
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return files_.file(index); }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override {
    return files_.bytes_of(storage);
  }
  void locate(std::span<const std::uint32_t> tensors) override { files_.locate_tensors(tensors); }
  bool check_container(std::uint32_t index, ContainerReport& report) const override {
    torch_save::check_saved_file(files_.file(index), report);
    return true;
  }

 private:
  /// The first folder by name is that of rank 0, unless rank 0's is missing; any rank's arguments say which ranks there
  /// are.
  Save open_ranks(const OpenOptions& options) {
    Save save;
    save.ranks.push_back(open_rank(catalog_, files_, folder_.ranks.front()));
    const RankStates& first = save.ranks.front();
    try {
      save.arguments = read_arguments(arguments_of(*first.root));
    } catch (Error& error) {
      throw error.in_file(catalog_.files[first.file].path);
    }
    check_folders(folder_, save.arguments, options.ranks_expected);
    check_version(catalog_, first);
    for_each_rank(save.arguments, [&](const Coordinates& rank) {
      const bool is_first = rank == Coordinates();
      if (!is_first) save.ranks.push_back(open_rank(catalog_, files_, folder_of(rank, save.arguments)));
      save.ranks.back().rank = rank;
    });
    return save;
  }

  void open_optimizers(const SourceStore& store, Save& save) {
    const auto is_there = [&](const std::string& rank) {
      return store.status(join_path(join_path(folder_.path, rank), kOptimizerFile)).kind != FileKind::kAbsent;
    };
    if (std::ranges::none_of(folder_.ranks, is_there)) return;
    for_each_rank(save.arguments, [&](const Coordinates& rank) {
      save.optimizers.push_back(open_optimizer(catalog_, files_, folder_of(rank, save.arguments)));
    });
  }

  void describe(const Save& save) {
    for (std::size_t i = 0; i < save.ranks.size(); ++i) {
      catalog_.files[save.ranks[i].file].rank = static_cast<int>(i);
      if (!save.optimizers.empty()) catalog_.files[save.optimizers[i].file].rank = static_cast<int>(i);
    }
    catalog_.world_size = std::ssize(save.ranks);
    const Arguments& arguments = save.arguments;
    catalog_.format_version =
        fmt::format("tensor {}, pipeline {}, expert {}", arguments.tensor, arguments.pipeline, arguments.expert);
  }

  Catalog catalog_ = source_catalog();
  SaveFolder folder_;
  torch_save::SavedFiles files_;
};

}  // namespace

bool detect(const Source& source) {
  return source.paths.size() == 1 && is_save_folder(*source.store, source.paths.front());
}

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  return std::make_unique<MegatronReader>(source, options);
}

}  // namespace shard::megatron
