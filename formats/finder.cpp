#include "formats/finder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "formats/foreign.h"
#include "formats/megatron_tracker.h"
#include "formats/registry.h"
#include "libshard/core/name_pattern.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/suffixes.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"

namespace shard {

namespace {

constexpr std::size_t kMaxFound = 8;
constexpr int kMaxDepth = 2, kMaxNames = 4096, kMaxProbes = 64;
/// Prefixes of the files and folders in which trainers store their own state.
constexpr std::array<std::string_view, 16> kSideBegins{"training_args", "scheduler",     "lr_scheduler", "rng",
                                                       "random_states", "scaler",        "grad_scaler",  "sampler",
                                                       "trainer_state", "extra_state",   "extra_info",   "recipe_state",
                                                       "dataloader",    "dl_state_dict", "train_state",  "data_reader"};
/// Whole names of such files and folders, without suffixes.
constexpr std::array<std::string_view, 5> kSideNames{"data", "train", "trainer", "meta", "args"};
constexpr std::string_view kWorldSize = "world_size_", kOptimizer = "optim", kModel = "model", kRank = "rank";
/// verl's folders of steps. A file with Megatron's name is about the last complete step.
constexpr std::string_view kStepFolder = "global_step_";
constexpr std::int64_t kMaxStepBytes = 32;

/// A key that is equal for the files of one set: the name without digits, except for the number of ranks.
std::string set_of(const std::string& name) {
  std::string key;
  const std::vector<std::string> pieces = cut_at_numbers(name);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const bool is_number = i % 2 == 1 && !pieces[i - 1].ends_with(kWorldSize);
    key += is_number ? "#" : pieces[i];
  }
  return key;
}

using Sets = std::map<std::string, std::vector<std::string>>;

/// The names in each set of files that may belong to ranks, according to any format that guesses.
Sets rank_sets_in(const Source& source) {
  std::set<std::string> names;
  for (const Format* format : formats()) {
    if (format->likely_rank_files == nullptr) continue;
    for (std::string& name : format->likely_rank_files(source)) names.insert(std::move(name));
  }
  Sets sets;
  for (const std::string& name : names) sets[set_of(name)].push_back(name);
  return sets;
}

/// Does the same for all files that torch.save may have written.
Sets sets_in(const Source& source) {
  Sets sets = rank_sets_in(source);
  const std::string& folder = source.paths.front();
  for (const std::string& name : source.store->list(folder)) {
    const bool is_whole = !name.starts_with('.') && ends_in_any(name, kWholeTorchSuffixes);
    if (is_whole && source.store->is_file(join_path(folder, name))) {
      sets[set_of(name)].push_back(name);
    }
  }
  return sets;
}

/// True if a format that guesses recognises the content of one file, because its tensors are sharded over ranks.
bool has_shards(const Source& file) {
  return std::ranges::any_of(formats(),
                             [&](const Format* format) { return format->is_guessed && format->detect(file); });
}

/// The last number in a name; -1 if it has none, or one above INT64_MAX.
std::int64_t number_in(const std::string& name) {
  const std::vector<std::string> pieces = cut_at_numbers(name);
  return pieces.size() < 2 ? -1 : parse_natural(pieces[pieces.size() / 2 * 2 - 1]).value_or(-1);
}

bool has_word(std::string_view name, std::string_view word) { return name.find(word) != std::string_view::npos; }

/// True for a name of an optimizer's state. A name that also mentions a model, such as model_and_optim, is the model's.
bool is_optimizers(std::string_view name) { return has_word(name, kOptimizer) && !has_word(name, kModel); }

/// Orders models before other checkpoints, and optimizers last.
int order_of(std::string_view name) {
  if (is_optimizers(name)) return 2;
  return has_word(name, kModel) ? 0 : 1;
}

bool is_side_name(std::string_view name) {
  const std::string_view stem = name.substr(0, name.find('.'));
  return std::ranges::find(kSideNames, stem) != kSideNames.end() ||
         std::ranges::any_of(kSideBegins, [&](std::string_view begin) { return name.starts_with(begin); });
}

/// True for fairseq2's folders of one stage and of one slice: model/pp_00/tp_00. They do not count as levels.
bool is_ranks_folder(std::string_view name) {
  return (name.starts_with("pp_") || name.starts_with("tp_")) && parse_natural(name.substr(3)).has_value();
}

/// The last name in a path that is not of such a folder.
std::string name_above_ranks(std::string path) {
  while (is_ranks_folder(base_name(path))) path = parent_path(path);
  return base_name(path);
}

/// True for a trainer's own state: a file with such a name, or files in a folder with such a name.
bool is_side_state(const FoundCheckpoint& found) {
  return is_side_name(name_above_ranks(found.path)) ||
         (found.kind != FoundCheckpoint::Kind::kFolder && is_side_name(base_name(parent_path(found.path))));
}

class Finder {
 public:
  Finder(const SourceStore& store, const IsCheckpoint& is_checkpoint, const HoldsTensors& holds_tensors)
      : store_(store), is_checkpoint_(is_checkpoint), holds_tensors_(holds_tensors) {}

  std::vector<FoundCheckpoint> find(const std::string& folder) {
    look_in(folder, 0);
    if (found_.empty()) return std::move(side_);
    if (found_.size() == 1) return std::move(found_);
    std::vector<FoundCheckpoint> with_tensors = found_;
    std::erase_if(with_tensors, [&](const FoundCheckpoint& each) {
      return each.kind == Kind::kFile && !holds_tensors_(source_of(each.path));
    });
    return with_tensors.empty() ? std::move(found_) : std::move(with_tensors);
  }

 private:
  using Kind = FoundCheckpoint::Kind;

  bool is_done() const { return found_.size() == kMaxFound || names_left_ <= 0 || probes_left_ <= 0; }

  void look_in(const std::string& folder, int depth) {
    try {
      for (const std::string& name : folders_in(folder)) {
        const std::string path = join_path(folder, name);
        if (is_done()) return;
        if (probe(path)) {
          add({Kind::kFolder, path});
        } else if (is_nanotron_folder(store_, path)) {
          continue;
        } else if (const int below = is_ranks_folder(name) || holds_ranks(path) ? depth : depth + 1;
                   below < kMaxDepth) {
          look_in(path, below);
        } else {
          add_sets(path);
        }
      }
      add_sets(folder);
    } catch (const Error& error) {
      if (!is_about_content(error)) throw;
      return;  // A folder that cannot be read is not a candidate.
    }
  }

  std::vector<std::string> folders_in(const std::string& folder) {
    std::vector<std::string> names = store_.list(folder);
    if (std::ssize(names) > names_left_) names.resize(static_cast<std::size_t>(names_left_));
    names_left_ -= static_cast<int>(names.size());
    std::erase_if(names, [&](const std::string& name) {
      return name.starts_with('.') || !store_.is_folder(join_path(folder, name));
    });
    std::ranges::sort(names, {}, [](const std::string& name) {
      return std::tuple(-number_in(name), order_of(name), std::string_view(name));
    });
    return names;
  }

  /// True for a folder of fairseq2 with folders of stages. It does not count as a level either.
  bool holds_ranks(const std::string& path) { return store_.is_folder(join_path(path, "pp_00")); }
  bool probe(const std::string& path) { return probes_left_-- > 0 && is_checkpoint_(source_of(path)); }
  Source source_of(const std::string& path) const { return {&store_, {path}}; }

  void add(FoundCheckpoint found) {
    std::vector<FoundCheckpoint>& to = is_side_state(found) ? side_ : found_;
    if (to.size() < kMaxFound) to.push_back(std::move(found));
  }

  /// Adds the sets of files in `folder` itself.
  void add_sets(const std::string& folder) {
    std::vector<std::vector<std::string>> sets;
    for (auto& [key, names] : sets_in(source_of(folder))) sets.push_back(std::move(names));
    std::ranges::stable_sort(
        sets, {}, [](const auto& names) { return std::pair(is_side_name(names.front()), order_of(names.front())); });
    for (std::vector<std::string>& names : sets) {
      if (is_done()) return;
      add_set(folder, names);
    }
  }

  /// Adds one set. Files of ranks are read together if their tensors are sharded, or if their names mark them as ranks.
  /// Other files are steps.
  void add_set(const std::string& folder, std::vector<std::string>& names) {
    const std::string first = join_path(folder, names.front());
    if (!probe(first)) return;
    const bool has_ranks = has_word(names.front(), kRank);
    const bool are_cut = (names.size() > 1 || has_ranks) && has_shards(source_of(first));
    if (are_cut || (names.size() > 1 && has_ranks)) {
      FoundCheckpoint found{Kind::kFiles, join_path(folder, shell_pattern(names))};
      for (const std::string& name : names) found.files.push_back(join_path(folder, name));
      return add(std::move(found));
    }
    std::ranges::stable_sort(names, std::ranges::greater(), number_in);
    for (const std::string& name : names) {
      const std::string path = join_path(folder, name);
      if (found_.size() == kMaxFound) return;
      if (path == first || probe(path)) add({Kind::kFile, path});
    }
  }

  const SourceStore& store_;
  const IsCheckpoint& is_checkpoint_;
  const HoldsTensors& holds_tensors_;
  std::vector<FoundCheckpoint> found_, side_;
  int names_left_ = kMaxNames, probes_left_ = kMaxProbes;
};

/// The folder of the last step according to the trainer's file; empty if there is no such file.
std::string last_step(const SourceStore& store, const std::string& folder) {
  std::string number = small_text(store, join_path(folder, kTrackerName), kMaxStepBytes);
  if (number.empty()) return {};
  number.resize(number.find_last_of("0123456789") + 1);
  return join_path(folder, fmt::format("{}{}", kStepFolder, number)) + "/";
}

}  // namespace

std::vector<FoundCheckpoint> model_candidates(const Source& source, std::vector<FoundCheckpoint> found) {
  std::erase_if(found, [](const FoundCheckpoint& each) {
    return is_side_state(each) || is_optimizers(name_above_ranks(each.path));
  });
  if (found.size() < 2) return found;
  const std::string last = last_step(*source.store, source.paths.front());
  const auto is_older = [&](const FoundCheckpoint& each) { return !each.path.starts_with(last); };
  if (!last.empty() && !std::ranges::all_of(found, is_older)) std::erase_if(found, is_older);
  return found;
}

bool is_trainers_name(std::string_view name) { return is_side_name(name) || is_optimizers(name); }

bool holds_files_of(const SourceStore& store, const std::string& folder, const Catalog& catalog) {
  const auto is_there = [&](const File& file) { return store.exists(join_path(folder, file.path)); };
  return catalog.files.empty() || std::ranges::any_of(catalog.files, is_there);
}

bool describes_folder(const Catalog& catalog, std::string_view name) {
  return name == "layout.json" || name == kTrackerName ||
         (name == "metadata.json" && catalog.format == "megatron-dist");
}

std::vector<FoundCheckpoint> find_checkpoints(const Source& source, const IsCheckpoint& is_checkpoint,
                                              const HoldsTensors& holds_tensors) {
  return Finder(*source.store, is_checkpoint, holds_tensors).find(source.paths.front());
}

std::vector<FoundCheckpoint> numbered_models(const Source& source) {
  std::vector<FoundCheckpoint> found;
  const std::string& folder = source.paths.front();
  if (!is_one_folder(source)) return found;
  const std::vector<std::string> names = source.store->list(folder);
  for (const auto& [first, others] : {std::pair("model.safetensors", NamePattern("model_{number}.safetensors")),
                                      std::pair("pytorch_model.bin", NamePattern("pytorch_model_{number}.bin"))}) {
    std::vector<std::string> models = names;
    std::erase_if(models, [&](const std::string& name) { return name != first && !others.fits(name); });
    if (models.size() < 2) continue;
    for (const std::string& name : models) found.push_back({FoundCheckpoint::Kind::kFile, join_path(folder, name)});
  }
  std::ranges::sort(found, {}, &FoundCheckpoint::path);
  return found;
}

std::optional<std::string> latest_name(const SourceStore& store, const std::string& folder) {
  constexpr std::int64_t kMostBytes = 4096;
  const std::string path = join_path(folder, "latest");
  const FileStatus status = store.status(path);
  if (status.kind != FileKind::kFile || status.bytes > kMostBytes) return std::nullopt;
  return small_text(store, path, kMostBytes);
}

std::string suggest_each(Error& error, const std::string& folder, std::span<const FoundCheckpoint> found) {
  const std::size_t folder_bytes = join_path(folder, "").size();
  std::vector<std::string> names;
  for (const FoundCheckpoint& each : found) {
    names.push_back(each.path.substr(folder_bytes));
    error.suggest(each.kind == FoundCheckpoint::Kind::kFiles ? Remedy::kReadFiles : Remedy::kReadFolder, each.path);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

bool holds_one_set(const Source& source) {
  const Sets sets = rank_sets_in(source);
  return sets.size() == 1 && !is_side_name(sets.begin()->second.front());
}

}  // namespace shard
