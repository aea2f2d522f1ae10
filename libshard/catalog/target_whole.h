/// \file
/// Targets of whole tensors, in one file or several. Inside libshard/catalog only.
#pragma once

#include "libshard/catalog/layout.h"
#include "libshard/catalog/target_draft.h"

namespace shard {

/// Adds the selected tensors and the files, each tensor with its file's number as rank where the format has pieces and
/// does not prefer whole tensors; where it does, files have no rank either.
///
/// Where `traits.sharing`, a tensor of the same dtype that shares its storage with another one, or is not row-major,
/// keeps storage and strides: its storage becomes the union of the spans that the selected views use, listed in
/// `storage_copies`. Where `traits.aliases`, aliases that are cast alike stay aliases, with or without `sharing`; other
/// casts are stored apart, with a warning. Elsewhere every name is stored in full and row-major. Tensors that share a
/// storage go to one file.
/// \pre the layout does not cut
/// \throws Error kInvalidArgument  several files for a format of one; as assign_files.
void add_whole_tensors(TargetDraft& draft, const Layout& layout);

}  // namespace shard
