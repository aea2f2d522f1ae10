#include "formats/deepspeed/model_files.h"

#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::deepspeed {

std::string ModelFiles::name(std::size_t file) const {
  const TagFolder& folder = whole_.folder;
  return are_of_ranks() ? name_beside(folder.sharded_models.front(), static_cast<std::int64_t>(file))
                        : folder.models.front().name;
}

void ModelFiles::add_frozen(TreeFiles& files, std::span<RankParts> parts) const {
  if (!whole_.save.is_parted()) return;
  const Catalog& source = whole_.catalog;
  if (!are_of_ranks()) {
    throw Error(ErrorCode::kUnsupported, "cannot write a stage 3 save without a file of model states of each rank")
        .in_file(whole_.folder.path);
  }
  for (const auto& [name, shape] : whole_.save.models.front().frozen_shapes.entries()) {
    const std::uint32_t tensor = whole_.flat_tensor(name);
    const StoredTensor& stored = source.stored_of(source.tensors[tensor]);
    const std::int64_t numel = checked_numel(shape), size = parted_size(numel, ranks_);
    std::vector<std::uint32_t> rows;
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      rows.push_back(files.add_row(first_ + static_cast<std::uint32_t>(rank),
                                   whole_.number_of(static_cast<std::int64_t>(rank)), stored.dtype, size,
                                   source.storages[stored.storage].location));
      parts[rank].frozen[name] = files.number_of(rows.back());
    }
    add_in_rows(files, tensor, rows, lay_parted(numel, ranks_));
  }
}

void add_in_rows(TreeFiles& files, std::uint32_t tensor, std::span<const std::uint32_t> rows,
                 std::span<const FlatPiece> pieces) {
  files.begin_tensor(tensor);
  if (pieces.empty()) files.add_run(rows.front(), 0, 0, 0);
  for (const FlatPiece& piece : pieces) {
    files.add_run(rows[static_cast<std::size_t>(piece.part)], piece.begin, piece.count, piece.first);
  }
}

}  // namespace shard::deepspeed
