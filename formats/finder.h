/// \file
/// Finds checkpoints below a folder that is not one: a trainer's checkpoint-N, a run's folder of steps, a folder with
/// the rank files of a model and of its optimizer.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"
#include "libshard/catalog/catalog.h"
#include "libshard/core/error.h"

namespace shard {

struct FoundCheckpoint {
  enum class Kind {
    kFolder,  ///< `path` is a folder.
    kFile,    ///< `path` is one file.
    kFiles,   ///< Files of ranks: `path` is a folder and a shell pattern, "run/model_rank_*.pt".
  };
  Kind kind;
  std::string path;
  std::vector<std::string> files{};  ///< For kFiles: the files that match the pattern.

  /// The paths to open.
  std::vector<std::string> paths() const { return kind == Kind::kFiles ? files : std::vector{path}; }
};

/// True for a source that can be opened as it is.
using IsCheckpoint = std::function<bool(const Source& source)>;

/// True for a file that contains tensors, as far as it can be read.
using HoldsTensors = std::function<bool(const Source& source)>;

/// Finds the checkpoints in the one folder of `source` and at most two levels below it. Higher numbers come first
/// (checkpoint-900, checkpoint-800), and models before optimizers. The folders of fairseq2's ranks are no levels.
/// Folders and files that cannot be read are skipped. A trainer's own state (random numbers, schedulers, data loaders)
/// is skipped unless it is the only result. If there are several results, files without tensors are dropped. Cost:
/// bounded; reads at most 4096 names, opens at most 64 folders or files, and reads the metadata of 8 files. Finds at
/// most 8.
std::vector<FoundCheckpoint> find_checkpoints(const Source& source, const IsCheckpoint& is_checkpoint,
                                              const HoldsTensors& holds_tensors);

/// Selects the checkpoints that may contain a model's tensors: all but those of optimizers and of a trainer's own
/// state. If a trainer's file names the last of several steps, only those of that step.
std::vector<FoundCheckpoint> model_candidates(const Source& source, std::vector<FoundCheckpoint> found);

/// True for the name of a file or folder in which trainers store an optimizer's states or their own.
bool is_trainers_name(std::string_view name);

/// Whether the folder itself contains files of the checkpoint. If a folder inside it does (the last step of a run),
/// their paths are relative to that one.
bool holds_files_of(const SourceStore& store, const std::string& folder, const Catalog& catalog);

/// True for a file that the checkpoint's reader uses but the catalog does not list, because it describes the folder.
bool describes_folder(const Catalog& catalog, std::string_view name);

/// The content of the folder's file `latest`, in which DeepSpeed and others write the name of their last save. Null if
/// there is no such file, or it is too large for a name.
std::optional<std::string> latest_name(const SourceStore& store, const std::string& folder);

/// Suggests each of the checkpoints below `folder` as the source. \returns their paths in it: "a, b"
std::string suggest_each(Error& error, const std::string& folder, std::span<const FoundCheckpoint> found);

/// The models in one folder that accelerate numbers: model.safetensors, model_1.safetensors (or pytorch_model.bin,
/// ...). Empty unless there are several.
std::vector<FoundCheckpoint> numbered_models(const Source& source);

/// True if the names of the files with torch's suffixes in the one folder of `source` form one set: they differ only in
/// numbers (model_rank_0.pt, model_rank_1.pt), and are not a trainer's own state. Files of ranks are one set.
bool holds_one_set(const Source& source);

}  // namespace shard
