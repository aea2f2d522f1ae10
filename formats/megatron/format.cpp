#include "formats/megatron/format.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/foreign.h"
#include "formats/megatron_tracker.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"

namespace shard {

namespace {

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
  if (names_backend(store, path)) return unreadable_kind("a Megatron-core checkpoint of a different back end", path);
  return Error(ErrorCode::kCorruption, fmt::format("the iteration that {} names is not a checkpoint", kTrackerName))
      .in_file(path)
      .of_kind(FindingKind::kBadHeader)
      .because(
          "it contains neither a metadata.json of Megatron-core nor folders mp_rank_* of Megatron-LM that can be read")
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

const Format kMegatronFormat{
    .traits = {.name = "megatron"},
    .suffixes = {},
    .detect = megatron::detect,
    .open = megatron::open,
    .make_writer = nullptr,
    .explain_refusal = explain_folder,
};

}  // namespace shard
