#include "formats/deepspeed/tree_files.h"

#include <algorithm>
#include <span>
#include <utility>

#include "formats/torch/placed_zip.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value_walk.h"
#include "libshard/io/paths.h"

namespace shard::deepspeed {

namespace {

/// By file: the stored tensor for each source tensor.
using StoredByFile = std::vector<HashMap<std::uint32_t, std::uint32_t>>;

/// Adds the tensors that files copy from the source. Whole storages are copied, so tensors share them as before.
class CopiedTensors {
 public:
  CopiedTensors(const Catalog& source, Catalog& target) : source_(source), target_(target), builder_(target) {}

  void begin_file() {
    by_file_.emplace_back();
    storages_ = {};
  }

  void add(std::uint32_t tensor) {
    const auto [stored, is_new] = by_file_.back().try_emplace(tensor, 0U);
    if (!is_new) return;
    StoredTensor copy = source_.stored_of(source_.tensors[tensor]);
    copy.storage = copied(copy.storage);
    stored = builder_.add_stored(copy);
    if (known_.insert(tensor)) add_tensor(tensor, stored);
  }

  StoredByFile take() { return std::move(by_file_); }

 private:
  std::uint32_t copied(std::uint32_t storage) {
    const auto [number, is_new] = storages_.try_emplace(storage, 0U);
    if (!is_new) return number;
    const Storage& from = source_.storages[storage];
    Storage copy;
    copy.bytes = from.bytes;
    copy.file = static_cast<std::uint32_t>(by_file_.size() - 1);
    copy.location = from.location;
    copy.whole_copy = true;
    number = builder_.add_storage(copy);
    if (from.bytes > 0) target_.storage_copies.push_back({storage, number, 0, 0, from.bytes});
    return number;
  }

  void add_tensor(std::uint32_t index, std::uint32_t stored) {
    Tensor tensor = source_.tensors[index];
    Chunk chunk = source_.chunks_of(tensor).front();
    tensor.alias_of = kNoIndex;
    tensor.source = index;
    builder_.begin(tensor);
    chunk.stored = stored;
    builder_.add_chunk(chunk);
  }

  const Catalog& source_;
  Catalog& target_;
  CatalogBuilder builder_;
  StoredByFile by_file_;
  HashMap<std::uint32_t, std::uint32_t> storages_;  ///< For the last file: from the source's storages to the target's.
  HashSet<std::uint32_t> known_;                    ///< Source tensors that are tensors of the target.
};

/// Checks that a tree names every row. All trees are built from rank 0's, which may lack a row's state.
void check_all_placed(const Catalog& target) {
  const auto lost = std::ranges::find_if(target.storages, [](const Storage& storage) { return storage.offset < 0; });
  if (lost == target.storages.end()) return;
  throw Error(ErrorCode::kCorruption, "rank 0's file lacks states that other ranks' files have")
      .in_file(target.files[lost->file].path)
      .of_kind(FindingKind::kMixedSave);
}

class TreeWriter final : public torch_save::ZipsWriter {
 public:
  TreeWriter(std::int64_t source_tensors, StoredByFile copied, std::vector<TreeFile> files, std::vector<TextFile> texts)
      : source_tensors_(source_tensors),
        copied_(std::move(copied)),
        files_(std::move(files)),
        texts_(std::move(texts)) {}

  void place(Catalog& target) override {
    for (std::uint32_t file = 0; file < files_.size(); ++file) {
      place_zip(target, base_name(files_[file].path));
      target.files[file].path = files_[file].path;
    }
    check_all_placed(target);
    for (const TextFile& text : texts_) place_text(target, text.path, text.content);
  }

  bool is_folder() const override { return true; }

 private:
  torch_save::PlacedZip::DumpPickle pickle_of(const Catalog& target, std::uint32_t file) override {
    return [this, &target, file](const pickle::Sink& sink) {
      Arena arena;
      const auto view = [&](std::int64_t number) {
        const std::int64_t stored = number < source_tensors_ ? *copied_[file].find(static_cast<std::uint32_t>(number))
                                                             : number - source_tensors_;
        return zip(file).view_of(target, target.stored[static_cast<std::size_t>(stored)]);
      };
      torch_save::dump(*files_[file].tree(arena), view, {}, sink);
    };
  }

  std::int64_t source_tensors_;
  StoredByFile copied_;
  std::vector<TreeFile> files_;
  std::vector<TextFile> texts_;
};

}  // namespace

TreeFiles::TreeFiles(const Catalog& source, std::string_view format)
    : source_(source), source_tensors_(std::ssize(source.tensors)), builder_(target) {
  target.format = format;
  target.locations = source.locations;
  target.objects = source.objects;
  target.borrowed = source.borrowed;
  target.borrowed.push_back(source.arena);
}

std::uint32_t TreeFiles::add_row(std::uint32_t file, int rank, DType dtype, std::int64_t elements,
                                 std::uint16_t location) {
  Storage storage;
  storage.bytes = checked_bytes(elements, dtype);
  storage.file = file;
  storage.location = location;
  return builder_.add_row_major(builder_.add_storage(storage), target.arena->dims(std::span(&elements, 1)), dtype,
                                rank);
}

void TreeFiles::begin_tensor(std::uint32_t source) {
  Tensor tensor = source_.tensors[source];
  tensor.alias_of = kNoIndex;
  tensor.source = source;
  builder_.begin(tensor);
}

void TreeFiles::add_run(std::uint32_t stored, std::int64_t begin, std::int64_t count, std::int64_t first) {
  builder_.add_run(stored, begin, count, first);
}

std::uint32_t TreeFiles::add_whole(std::uint32_t file, std::uint32_t source, bool as_row) {
  const Tensor& tensor = source_.tensors[source];
  const std::int64_t numel = checked_numel(tensor.shape);
  const std::uint32_t row = add_row(file, -1, tensor.dtype, numel, source_.storage_of(tensor).location);
  if (!as_row) {
    target.stored[row].shape = tensor.shape;
    target.stored[row].strides = row_major_strides(*target.arena, tensor.shape);
  }
  begin_tensor(source);
  add_run(row, 0, numel, 0);
  return row;
}

std::unique_ptr<Writer> TreeFiles::finish(std::vector<TreeFile> files, std::vector<TextFile> texts) {
  torch_save::check_contents(target);
  CopiedTensors copied(source_, target);
  for (const TreeFile& file : files) {
    Arena arena;
    target.files.push_back({file.path, 0, file.rank});
    copied.begin_file();
    ValueWalk walk(*file.tree(arena));
    while (const Value* const value = walk.next()) {
      if (value->kind != ValueKind::kTensor || value->number >= source_tensors_) continue;
      copied.add(static_cast<std::uint32_t>(value->number));
    }
  }
  return std::make_unique<TreeWriter>(source_tensors_, copied.take(), std::move(files), std::move(texts));
}

}  // namespace shard::deepspeed
