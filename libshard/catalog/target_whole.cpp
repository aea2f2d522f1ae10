#include "libshard/catalog/target_whole.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "libshard/catalog/target_files.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

/// The file of each selected tensor. Tensors that share a storage are one unit, led by the first of them.
std::vector<std::uint32_t> files_of_tensors(const TargetDraft& draft, const Layout& layout) {
  const SharingPlan& sharing = draft.sharing;
  const std::size_t count = draft.selection.tensors.size();
  std::vector<std::uint32_t> unit_of(count), unit_of_storage(sharing.storages().size(), kNoIndex);
  std::vector<std::int64_t> unit_bytes;
  const auto add_unit = [&](std::int64_t bytes) {
    unit_bytes.push_back(bytes);
    return static_cast<std::uint32_t>(unit_bytes.size() - 1);
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (const std::uint32_t shared = sharing.shared(i); shared != kNoIndex) {
      if (unit_of_storage[shared] == kNoIndex) unit_of_storage[shared] = add_unit(sharing.storages()[shared].bytes);
      unit_of[i] = unit_of_storage[shared];
    } else if (draft.traits.aliases && sharing.alias(i) != kNoIndex) {
      unit_of[i] = unit_of[sharing.alias(i)];
    } else {
      unit_of[i] = add_unit(TargetDraft::bytes_of(draft.source_tensor(i).shape, draft.selection.tensors[i].dtype));
    }
  }
  const std::vector<std::uint32_t> file_of_unit = assign_files(layout, unit_bytes);
  std::vector<std::uint32_t> files;
  files.reserve(count);
  for (const std::uint32_t unit : unit_of) files.push_back(file_of_unit[unit]);
  return files;
}

class WholeAdder {
 public:
  WholeAdder(TargetDraft& draft, const std::vector<std::uint32_t>& files)
      : draft_(draft),
        target_(draft.target),
        files_(files),
        storage_of_shared_(draft.sharing.storages().size(), kNoIndex) {}

  void add_tensor(std::size_t selected) {
    Tensor& tensor = draft_.add_tensor(selected);
    tensor.chunk_count = 1;
    StoredTensor stored = draft_.make_stored(selected, tensor.shape);
    if (draft_.traits.pieces && !draft_.traits.prefers_whole) stored.rank = static_cast<std::int32_t>(files_[selected]);
    if (const std::uint32_t shared = draft_.sharing.shared(selected); shared != kNoIndex) {
      stored.strides = draft_.source.chunks[draft_.source_tensor(selected).first_chunk].strides;
      stored.first = draft_.sharing.first(selected);
      stored.storage = shared_storage(selected, shared);
    } else {
      stored.strides = row_major_strides(*target_.arena, tensor.shape);
      const bool is_repeated = draft_.traits.aliases && tensor.alias_of != kNoIndex;
      stored.storage = is_repeated ? storage_of(tensor.alias_of)
                                   : add_storage(selected, TargetDraft::bytes_of(tensor.shape, tensor.dtype));
    }
    Chunk chunk;
    chunk.offsets = target_.arena->zeros(tensor.shape.size());
    chunk.sizes = tensor.shape;
    chunk.strides = stored.strides;
    chunk.first = stored.first;
    chunk.stored = draft_.add_stored(stored);
    target_.chunks.push_back(chunk);
  }

 private:
  std::uint32_t add_storage(std::size_t selected, std::int64_t bytes) {
    const std::uint32_t storage = draft_.add_storage(selected, bytes);
    target_.storages[storage].file = files_[selected];
    return storage;
  }

  std::uint32_t storage_of(std::uint32_t tensor) const {
    return target_.stored[target_.chunks[target_.tensors[tensor].first_chunk].stored].storage;
  }

  std::uint32_t shared_storage(std::size_t selected, std::uint32_t shared) {
    std::uint32_t& storage = storage_of_shared_[shared];
    if (storage != kNoIndex) return storage;
    const SharedStorage& from = draft_.sharing.storages()[shared];
    storage = add_storage(selected, from.bytes);
    target_.storages[storage].whole_copy = true;
    for (const UsedSpan& span : from.spans) {
      target_.storage_copies.push_back({from.from, storage, span.begin, span.to, span.end - span.begin});
    }
    return storage;
  }

  TargetDraft& draft_;
  Catalog& target_;
  const std::vector<std::uint32_t>& files_;
  std::vector<std::uint32_t> storage_of_shared_;
};

}  // namespace

void add_whole_tensors(TargetDraft& draft, const Layout& layout) {
  draft.target.warnings = draft.sharing.warnings(false);
  const std::vector<std::uint32_t> files = files_of_tensors(draft, layout);
  const std::uint32_t count = files.empty() ? 1 : std::ranges::max(files) + 1;
  if (count > 1 && !draft.traits.many_files) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} is a single file, but the layout needs {}", draft.traits.name, count));
  }
  for (std::uint32_t file = 0; file < count; ++file) {
    draft.target.files.push_back({"", 0, draft.traits.prefers_whole ? -1 : static_cast<int>(file)});
  }
  WholeAdder adder(draft, files);
  for (std::size_t i = 0; i < files.size(); ++i) adder.add_tensor(i);
}

}  // namespace shard
