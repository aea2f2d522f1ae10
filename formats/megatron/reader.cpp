#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "formats/foreign.h"
#include "formats/megatron/format.h"
#include "formats/megatron/merge.h"
#include "formats/megatron_tracker.h"
#include "formats/torch/saved_reader.h"
#include "libshard/core/error.h"
#include "libshard/core/short_text.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"

namespace shard::megatron {

namespace {

/// Refuses versions before 2.0, which have a different order of queries, keys and values.
void check_version(const Catalog& catalog, const RankStates& rank) {
  const Value* const version = find_key(*rank.root, "checkpoint_version");
  const bool is_number = version != nullptr && version->kind == ValueKind::kFloat;
  const bool is_integer = version != nullptr && version->kind == ValueKind::kInt;
  const double number = is_number ? version->real : is_integer ? static_cast<double>(version->number) : 0;
  if (number >= 2) return;
  throw Error(ErrorCode::kUnsupported, "cannot join a Megatron-LM save before checkpoint_version 2.0")
      .in_file(catalog.files[rank.file].path)
      .because("queries, keys and values have a different order there")
      .found(version == nullptr ? "none" : fmt::format("{}", number));
}

class MegatronReader final : public torch_save::SavedReader {
 public:
  MegatronReader(const Source& source, const OpenOptions& options)
      : MegatronReader(source, options, find_save_folder(source)) {}

 private:
  MegatronReader(const Source& source, const OpenOptions& options, SaveFolder folder)
      : SavedReader(*source.store, {folder.path, true}), folder_(std::move(folder)) {
    catalog_.format = "megatron";
    Save save = open_ranks(options);
    for (RankStates& rank : save.ranks) read_chunks(catalog_, rank, save.arguments.stages.chunks);
    check_save(catalog_, save);
    open_optimizers(*source.store, save);
    warn_of_files(*source.store, save);
    describe(save);
    merge(catalog_, files_, save);
    look_for_copies(*options.findings);
    validate_catalog(catalog_, *options.findings, options.threads);
  }

  /// Opens the first folder by name, which is rank 0's unless that is missing. The arguments of any rank define the
  /// list of all ranks.
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
      if (!is_first)
        save.ranks.push_back(open_rank(catalog_, files_, folder_.prefix + folder_of(rank, save.arguments)));
      save.ranks.back().rank = rank;
    });
    return save;
  }

  void open_optimizers(const SourceStore& store, Save& save) {
    const auto is_there = [&](const std::string& rank) {
      return store.exists(join_path(join_path(folder_.path, rank), kOptimizerFile));
    };
    if (std::ranges::none_of(folder_.ranks, is_there)) return;
    for_each_rank(save.arguments, [&](const Coordinates& rank) {
      save.optimizers.push_back(open_optimizer(catalog_, files_, folder_.prefix + folder_of(rank, save.arguments)));
    });
  }

  /// Warns of rank 0's files that are not read, and of those that are missing beside its optimizer.
  void warn_of_files(const SourceStore& store, const Save& save) {
    FirstNames others;
    for (const std::string& name : store.list(join_path(folder_.path, folder_.ranks.front()))) {
      if (name != kModelFile && name != kOptimizerFile) others.add(name);
    }
    if (others.count() > 0) {
      catalog_.warnings.push_back(fmt::format("files in {} are not read: {}", folder_.ranks.front(), others.text()));
    }
    const Value& root = *save.ranks.front().root;
    const Value* const distributed = find_key(arguments_of(root), "use_distributed_optimizer");
    if (!save.optimizers.empty() || distributed == nullptr || !distributed->boolean()) return;
    if (find_key(root, "optimizer") == nullptr) return;
    catalog_.warnings.push_back(
        fmt::format("the optimizer's states are missing: no rank has a file {}", kOptimizerFile));
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

  SaveFolder folder_;
};

/// True for the folder above Megatron's iterations. verl also writes a file of that name, beside its global_step_N.
bool is_megatron_root(const std::vector<std::string>& names) {
  const auto is_step = [](std::string_view name) { return name.starts_with("global_step_"); };
  return std::ranges::binary_search(names, kTrackerName) && std::ranges::none_of(names, is_step);
}

/// Whether a folder contains a complete metadata.json that names a back end of Megatron-Core. No format of this build
/// supports that back end.
bool names_backend(const SourceStore& store, const std::string& folder) {
  constexpr std::int64_t kMostBytes = 4096;
  const std::string text = small_text(store, join_path(folder, "metadata.json"), kMostBytes);
  return text.find("\"sharded_backend\"") != std::string::npos && text.ends_with('}');
}

/// The folder of the last iteration in `folder`; empty if there is none.
std::string last_iteration(const SourceStore& store, const std::string& folder) {
  std::string last;
  for (const std::string& name : store.list(folder)) {
    const std::string path = join_path(folder, name);
    if (name.starts_with("iter_") && path > last && store.is_folder(path)) last = path;
  }
  return last;
}

/// The reason why the folder above Megatron's iterations is not a checkpoint.
Error megatron_root(const SourceStore& store, const std::string& folder) {
  const std::string iteration = tracked_iteration(store, folder);
  if (iteration.empty()) {
    return Error(ErrorCode::kCorruption, "the file names no iteration")
        .in_file(join_path(folder, kTrackerName))
        .of_kind(FindingKind::kBadHeader)
        .expected("a number, or release")
        .hint("pass the folder of one iteration");
  }
  const std::string path = join_path(folder, iteration);
  if (!store.exists(path)) {
    Error error(ErrorCode::kNotFound, fmt::format("the iteration that {} names is missing", kTrackerName));
    error.in_file(path).of_kind(FindingKind::kMissingFile);
    if (const std::string last = last_iteration(store, folder); !last.empty()) {
      error.because(fmt::format("the last iteration in the folder is {}", base_name(last)));
      error.suggest(Remedy::kReadFolder, last);
    }
    return error;
  }
  if (names_backend(store, path)) return unreadable_kind("a Megatron-Core checkpoint of a different back end", path);
  return Error(ErrorCode::kCorruption, fmt::format("the iteration that {} names is not a checkpoint", kTrackerName))
      .in_file(path)
      .of_kind(FindingKind::kBadHeader)
      .because(
          "it contains neither a metadata.json of Megatron-Core nor folders mp_rank_* of Megatron-LM that can be read")
      .suggest(Remedy::kReadFolder, path);
}

std::optional<Error> explain_folder(const SourceStore& store, const std::string& path) {
  if (!store.is_folder(path)) return std::nullopt;
  const std::vector<std::string> names = store.list(path);
  if (is_megatron_root(names)) return megatron_root(store, path);
  if (!std::ranges::binary_search(names, "model_optim_rng.pt")) return std::nullopt;
  return unreadable_kind("the folder of one rank of a Megatron-LM checkpoint", path);
}

}  // namespace

bool detect(const Source& source) {
  return source.paths.size() == 1 && is_save_folder(*source.store, source.paths.front());
}

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  return std::make_unique<MegatronReader>(source, options);
}

}  // namespace shard::megatron

const shard::Format shard::kMegatronFormat{
    .traits = {.name = "megatron"},
    .suffixes = {},
    .detect = megatron::detect,
    .open = megatron::open,
    .make_writer = nullptr,
    .explain_refusal = megatron::explain_folder,
};
