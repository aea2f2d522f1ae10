/// \file
/// Which format and layout a writing verb produces, and whether it writes a file or a folder.
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

/// For layout options that cut tensors.
Error holds_whole_tensors(const Format& format);

/// The form by --to, else by the suffix of DST, else by the verb's defaults.
/// \throws Error kInvalidArgument  --to and the suffix, or the suffix and the layout options, contradict each other, or
///   nothing says the format; kUnsupported  a format that this build does not have.
TargetForm choose_form(const Session& session, const WriteRequest& write);

/// A layout and the checkpoint that it may refer to (--like).
struct ChosenLayout {
  Layout layout;
  std::unique_ptr<OpenSource> like;
};

/// The layout of the options, else by the verb's defaults. Whole tensors go into folders of files of at most 5GB.
/// \throws Error kInvalidArgument  a malformed layout, pieces for a format that holds whole tensors only (the hint
///   names others), or no layout for a verb that needs one.
ChosenLayout choose_layout(const Session& session, const WriteRequest& write, bool opaque_globals,
                           const TargetForm& form, Log& log);

/// How to write the format. Files of ranks hold what --as says, else what the source's hold, else what those of --like
/// hold, else DTensors with --mesh, else ShardedTensors.
WriteOptions choose_write_options(const WriteRequest& write, const TargetForm& form, const Catalog& source,
                                  const ChosenLayout& layout);

}  // namespace shard::app
