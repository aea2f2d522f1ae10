/// \file
/// Decides which format and layout a writing verb produces, and whether it writes a file or a folder.
#pragma once

#include <memory>
#include <string>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/source/source.h"
#include "libshard/catalog/layouts/layout.h"

namespace shard::app {

struct TargetForm {
  const Format* format = nullptr;  ///< Null: the source's.
  bool single_file = false;
};

/// The error for layout options that shard tensors, if the format can only store whole ones.
Error holds_whole_tensors(const Format& format);

/// The format of --to, or else of DST's suffix, or else of the verb's defaults.
/// \throws Error kInvalidArgument  --to contradicts the suffix, the suffix contradicts the layout options, or no option
///   determines the format; kUnsupported  this build lacks the format.
TargetForm choose_form(const Session& session, const WriteRequest& write);

/// A layout, and the checkpoint that it may refer to (--like).
struct ChosenLayout {
  Layout layout;
  std::unique_ptr<OpenSource> like;
};

/// The layout of the options, or else of the verb's defaults. By default, a folder of whole tensors has files of at
/// most 5GB.
/// \throws Error kInvalidArgument  a malformed layout; a layout of pieces for a format that stores only whole tensors
///   (the hint lists others); or no layout although the verb needs one.
ChosenLayout choose_layout(const Session& session, const WriteRequest& write, bool opaque_globals,
                           const TargetForm& form, Log& log);

/// Options for the format's writer. Files of ranks contain the kind of tensors of --as, or else that of the source, or
/// else that of --like, or else DTensors with --mesh and ShardedTensors without.
WriteOptions choose_write_options(const WriteRequest& write, const TargetForm& form, const Catalog& source,
                                  const ChosenLayout& layout);

}  // namespace shard::app
