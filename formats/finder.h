/// \file
/// Looks for checkpoints below a folder that is not one: a trainer's checkpoint-N, a run's folder of steps, a folder
/// with the rank files of a model and of its optimizer.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "formats/format.h"

namespace shard {

struct FoundCheckpoint {
  enum class Kind {
    kFolder,  ///< A folder.
    kFile,    ///< One file.
    kFiles,   ///< The files of ranks: `path` is a folder and a shell pattern, "run/model_rank_*.pt".
  };
  Kind kind;
  std::string path;
  std::vector<std::string> files{};  ///< Of kFiles: what the pattern stands for.

  /// What to open.
  std::vector<std::string> paths() const { return kind == Kind::kFiles ? files : std::vector{path}; }
};

/// True for what can be opened as it is.
using IsCheckpoint = std::function<bool(const Source& source)>;

/// True for a file that holds tensors, as far as it can be read.
using HoldsTensors = std::function<bool(const Source& source)>;

/// The checkpoints in the one folder of `source` and at most two folders down: the highest number first
/// (checkpoint-900, checkpoint-800), models before optimizers. Folders and files that cannot be read are skipped, and
/// so is a trainer's own state (random numbers, schedulers, data loaders), unless there is nothing else. Of several,
/// files without tensors are no checkpoints. Cost: bounded; at most 4096 names are looked at and 64 folders or files
/// probed, and the metadata of 8 files read. Finds at most 8.
std::vector<FoundCheckpoint> find_checkpoints(const Source& source, const IsCheckpoint& is_checkpoint,
                                              const HoldsTensors& holds_tensors);

/// Selects the checkpoints that may hold a model's tensors: all but those of optimizers and of a trainer's own state.
/// Where a trainer's file names the last of several steps, those of that step only.
std::vector<FoundCheckpoint> model_candidates(const Source& source, std::vector<FoundCheckpoint> found);

/// The models that lie in one folder as accelerate numbers them: model.safetensors, model_1.safetensors (or
/// pytorch_model.bin, ...). None where there are not several.
std::vector<FoundCheckpoint> numbered_models(const Source& source);

/// True where the files of torch's suffixes in the one folder of `source` are one set by their names, which differ in
/// numbers only (model_rank_0.pt, model_rank_1.pt), and no state of a trainer's own. Files of ranks are one set.
bool holds_one_set(const Source& source);

}  // namespace shard
