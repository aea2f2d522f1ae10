#include "libshard/catalog/target.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "libshard/catalog/target_checks.h"
#include "libshard/catalog/target_cut.h"
#include "libshard/catalog/target_draft.h"
#include "libshard/catalog/target_pieces.h"
#include "libshard/catalog/target_tree.h"
#include "libshard/catalog/target_whole.h"

namespace shard {

Catalog make_target(const Catalog& source, const Selection& selection, const Layout& layout,
                    const FormatTraits& traits) {
  check_layout(layout, traits);
  check_objects(selection, traits);
  const bool is_cut = cuts_tensors(layout) && traits.pieces;
  check_names(source, selection, traits, !is_cut);
  TargetDraft draft(source, selection, traits);
  if (is_cut) {
    const bool aliases_apart = add_pieces(draft, layout);
    add_objects(draft, aliases_apart);
    add_rank_files(draft);
  } else {
    add_whole_tensors(draft, layout);
    add_objects(draft, false);
    if (traits.pieces && !traits.prefers_whole)
      draft.target.world_size = static_cast<std::int64_t>(draft.target.files.size());
  }
  const auto* mesh = std::get_if<MeshLayout>(&layout);
  if (mesh != nullptr && !mesh->file_path.empty()) {
    draft.target.warnings.push_back(fmt::format(
        "ignored the layout document's files.path '{}': {} names its files by rank", mesh->file_path, traits.name));
  }
  return std::move(draft.target);
}

}  // namespace shard
