/// \file
/// The items of an open checkpoint: locates their storages and reads them.
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

#include "formats/dcp/item.h"
#include "formats/dcp/item_bytes.h"
#include "formats/dcp/metadata.h"
#include "formats/parts/decoded_view/view_cache.h"
#include "libshard/catalog/catalog.h"
#include "libshard/core/findings.h"
#include "libshard/core/hash_table.h"
#include "libshard/io/open_files.h"

namespace shard::dcp {

/// Storage i of the catalog belongs to item i. The storages of tensors inside objects follow. Threads: `file` and
/// `bytes_of` are safe.
class ItemStore {
 public:
  /// Ownership: `store` and `catalog` must outlive this. If `findings` continues after an error, `locate` marks a
  /// storage as lost where it would otherwise throw, and the storage stays lost.
  ItemStore(const SourceStore& store, const std::string& folder, Catalog& catalog,
            Findings& findings = throwing_findings());

  /// Appends one storage per item. \pre the catalog has the items' files and no storages yet.
  void set_items(std::vector<Item> items);
  const Item& item(std::uint32_t index) const { return items_[index]; }
  bool is_item(std::uint32_t storage) const { return storage < items_.size(); }
  /// The items of one file, by offset. Threads: safe. Cost: the first call sorts all items.
  std::vector<Item> of_file(std::uint32_t file) const;

  /// An item to be opened.
  struct Wanted {
    Item item;
    std::uint32_t entry;  ///< The caller's number: of a tensor or an object.
    std::uint32_t chunk = 0;
  };
  using Use = std::function<void(const std::shared_ptr<FetchedFile>& file, const Wanted& one)>;
  using Fail = std::function<void(Error& error, const Wanted& one)>;
  /// Calls `use` for each item in file order. The item's file has its front and end in memory.
  /// \param fail  receives items whose file cannot be opened or whose bytes cannot be read. Empty: they are thrown.
  void for_each(std::vector<Wanted> wanted, const Use& use, const Fail& fail = {}) const;

  /// A tensor of a class that this build does not read.
  struct Unread {
    std::uint32_t tensor;
    Error why;
  };
  /// For repair: the unsupported items that `locate` found, without duplicates. `locate` does not throw for them.
  const std::vector<Unread>& unread() const { return unread_; }

  /// Finds the storages of these tensors' chunks that are not located yet.
  /// \throws Error kCorruption, kUnsupported  an item cannot be read, or contradicts its tensor's dtype or shape.
  void locate(std::span<const std::uint32_t> tensors);
  /// Looks for files whose items differ from those that `.metadata` names (check_items.h). Even items that fit may
  /// then belong to different tensors or to another save. \pre for repair; all tensors were located
  void look_for_misplaced();
  /// Records that a file contains the items of a different file.
  void misplace(std::uint32_t file, const Error& why) { misplaced_.try_emplace(file, why); }
  bool is_misplaced(std::uint32_t file) const { return misplaced_.contains(file); }
  /// Marks all items of such files as lost. \pre for repair
  void lose_misplaced();
  /// Uses all bytes of an object's item as its storage. \pre its length is known, and it is not compressed with zstd
  void resolve_whole(std::uint32_t item);
  /// Adds an item's bytes to the catalog's budget. The items of one file add at most its size. The first one also adds
  /// the allocated bytes of the whole file.
  void earn(const RandomReader& file, const Item& item);
  /// Adds a storage for a tensor inside an object. \returns its index.
  std::uint32_t add_storage(const Location& location, std::uint32_t file);

  /// See Reader.
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const { return files_.get(index); }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const;

 private:
  /// Items [begin, end) of for_each, which are in one file. The first `taken` of them are fetched.
  struct ItemsOfFile {
    std::size_t begin, end;
    std::shared_ptr<FetchedFile> fetched;
    std::size_t taken = 0;
  };

  void fetch_ahead(std::span<const Item> items, std::span<ItemsOfFile> files) const;
  void locate_one(const std::shared_ptr<FetchedFile>& file, const Wanted& one);
  void look_into(std::uint32_t file);
  /// Places the chunks of one stored tensor, starting at chunk `first`.
  void place_chunks(const Tensor& tensor, std::uint32_t first, const ItemTensor& found);
  void resolve(std::uint32_t storage, const Location& location);

  Catalog& catalog_;
  Findings& findings_;
  std::vector<Item> items_;
  HashMap<std::uint32_t, Decoding> decodings_;  ///< By storage; only for storages that are not plain.
  ItemOpener opener_;
  std::vector<Unread> unread_;
  HashMap<std::uint32_t, Error> misplaced_;    ///< By file: how an item contradicts `.metadata`.
  HashMap<std::uint32_t, std::int64_t> left_;  ///< By file: the bytes that its items may still add to the budget.
  mutable std::once_flag ordered_;
  mutable std::vector<std::uint32_t> by_place_;  ///< Items by file and offset; filled by the first call of of_file.
  mutable OpenFiles files_;
  mutable decoded_view::ViewCache views_;
};

}  // namespace shard::dcp
