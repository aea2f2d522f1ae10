/// \file
/// The items of an open checkpoint: finding storages in them, and reading what is found.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/dcp/fetched_file.h"
#include "formats/dcp/item.h"
#include "formats/dcp/metadata.h"
#include "formats/parts/decoded_view/view_cache.h"
#include "libshard/catalog/catalog.h"
#include "libshard/core/findings.h"
#include "libshard/core/hash_table.h"
#include "libshard/io/open_files.h"

namespace shard::dcp {

/// Storage i of the catalog is item i; storages inside objects follow. Threads: `file` and `bytes_of` are safe.
class ItemStore {
 public:
  /// Ownership: `store` and `catalog` must outlive this.
  /// If `findings` goes on, `locate` loses the storages for which it throws otherwise, and those stay lost.
  ItemStore(const SourceStore& store, const std::string& folder, Catalog& catalog,
            Findings& findings = throwing_findings());

  /// Appends one storage for each item. \pre the catalog has the items' files and no storages yet.
  void set_items(std::vector<Item> items);
  const Item& item(std::uint32_t index) const { return items_[index]; }
  bool is_item(std::uint32_t storage) const { return storage < items_.size(); }
  /// Those of one file, by offset. Threads: safe. Cost: the first call sorts all items.
  std::vector<Item> of_file(std::uint32_t file) const;

  /// An item to be looked into.
  struct Wanted {
    Item item;
    std::uint32_t entry;  ///< What the caller counts: a tensor, an object.
    std::uint32_t chunk = 0;
  };
  using Use = std::function<void(const std::shared_ptr<FetchedFile>& file, const Wanted& one)>;
  /// Calls `use` for each in the order in which they lie, with its file, fronts and ends already in memory.
  void for_each(std::vector<Wanted> wanted, const Use& use) const;

  /// A tensor of a class that this build does not read.
  struct Unread {
    std::uint32_t tensor;
    Error why;
  };
  /// For repair: those that `locate` met, each once; `locate` does not throw for them.
  const std::vector<Unread>& unread() const { return unread_; }

  /// Finds the storages of these tensors' chunks that are not located yet.
  /// \throws Error kCorruption, kUnsupported  an item cannot be read, or contradicts its tensor's dtype or shape.
  void locate(std::span<const std::uint32_t> tensors);
  /// Looks for files that hold other items than `.metadata` names (misplaced_items.h): those of their items that fit
  /// may be of other tensors, or of another save. \pre for repair; all tensors were located
  void look_for_misplaced();
  /// A file's items are not its own.
  void misplace(std::uint32_t file, const Error& why) { misplaced_.try_emplace(file, why); }
  bool is_misplaced(std::uint32_t file) const { return misplaced_.contains(file); }
  /// Loses all items of such files. \pre for repair
  void lose_misplaced();
  /// Makes all bytes of an object's item its storage. \pre its length is known, and it is not of zstd
  void resolve_whole(std::uint32_t item);
  /// Lets the catalog's budget earn an item's bytes, of all items of a file no more than it has, and what the file
  /// holds.
  void earn(const RandomReader& file, const Item& item);
  /// A storage of its own for what lies inside an object. \returns its index.
  std::uint32_t add_storage(const Location& location, std::uint32_t file);

  /// See Reader.
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const { return files_.get(index); }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const;

 private:
  void locate_one(const std::shared_ptr<FetchedFile>& file, const Wanted& one);
  void look_into(std::uint32_t file);
  /// The chunks of one stored tensor, from `first` on.
  void place_chunks(const Tensor& tensor, std::uint32_t first, const ItemTensor& found);
  void resolve(std::uint32_t storage, const Location& location);

  Catalog& catalog_;
  Findings& findings_;
  std::vector<Item> items_;
  HashMap<std::uint32_t, Decoding> decodings_;  ///< By storage, of those that are not plain.
  ItemOpener opener_;
  std::vector<Unread> unread_;
  HashMap<std::uint32_t, Error> misplaced_;    ///< By file: which item contradicts `.metadata`.
  HashMap<std::uint32_t, std::int64_t> left_;  ///< By file: bytes that its items may still earn.
  mutable std::once_flag ordered_;
  mutable std::vector<std::uint32_t> by_place_;  ///< Items by file and offset, once of_file was called.
  mutable OpenFiles files_;
  mutable decoded_view::ViewCache views_;
};

}  // namespace shard::dcp
