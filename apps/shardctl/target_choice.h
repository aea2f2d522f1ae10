/// \file
/// Which format, file or folder, and layout a writing verb shall produce.
#pragma once

#include <memory>
#include <string>

#include "apps/shardctl/source.h"
#include "libshard/catalog/layout.h"

namespace shard::app {

struct TargetForm {
  const Format* format = nullptr;  ///< Null: the source's (reshard without --to and suffix).
  bool single_file = false;
};

/// --to, else the suffix of DST, else the verb's default.
/// \throws Error kInvalidArgument  --to and the suffix, or the suffix and the layout options, contradict each other, or
///   nothing says the format; kUnsupported  a format that this build does not have.
TargetForm choose_form(const Options& options);

/// A layout and the checkpoint that it may refer to (--like).
struct ChosenLayout {
  Layout layout;
  std::unique_ptr<OpenSource> like;
};

/// What the layout options say, else the verb's default: `convert` keeps the layout where `form` can hold pieces; whole
/// tensors go into folders of files of at most 5GB.
/// \throws Error kInvalidArgument  malformed, or pieces for a format that holds whole tensors only (the hint names
///   others), or reshard without a layout.
ChosenLayout choose_layout(const Session& session, const Options& options, const TargetForm& form, Log& log);

/// How the format shall be written. What files of ranks hold is what --as says, else what the source's do, else what
/// those of --like do, else DTensors with --mesh, else ShardedTensors.
WriteOptions choose_write_options(const Options& options, const TargetForm& form, const Catalog& source,
                                  const ChosenLayout& layout);

}  // namespace shard::app
