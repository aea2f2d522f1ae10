/// \file
/// The objects of a dcp folder: its bytes items and its common data. Inside formats/dcp only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/dcp/item_store.h"
#include "formats/dcp/metadata.h"
#include "formats/dcp/objects.h"
#include "formats/dcp/rank_copies.h"
#include "formats/dcp/reader.h"
#include "libshard/catalog/catalog.h"
#include "libshard/catalog/originals.h"
#include "libshard/core/findings.h"

namespace shard::dcp {

/// Access to the items. Ownership: all must outlive this.
struct ItemKeeper {
  Catalog& catalog;
  ItemStore& items;
  Findings& findings;
  Originals& originals;

  /// Adds a tensor of the catalog to `originals`, and marks it `damaged`. A box whose item is damaged becomes a loss.
  /// \param why  an error for which is_unread is true
  /// \throws Error kUnsupported  the tensor's items cannot be copied unchanged: they are compressed, truncated, or of a
  ///   reshaped tensor
  void keep_tensor(std::uint32_t tensor, const Error& why);
  /// Does the same for an object. \returns the damage of its item; nothing if it was kept. \throws Error  as
  /// keep_tensor
  std::optional<Error> keep_object(const ObjectEntry& object, const Error& why);

 private:
  bool is_copied(const Item& item) const { return item.length >= 0 && !item.zstd && !item.is_cut; }
  std::optional<Error> fault_of(std::uint32_t item) const;
  Originals::KeptItem keep(std::uint32_t item);
};

/// Fills the objects of the catalog: with names when the folder is opened, with leaves and values in `load_all`. A
/// problem of one object is reported to `findings`, or becomes a loss if `findings` continues. Threads: one.
class ObjectItems {
 public:
  /// \param opaque_globals  see OpenOptions; always true if the form keeps objects whole.
  /// Ownership: all must outlive this.
  ObjectItems(const FolderForm& form, bool opaque_globals, Catalog& catalog, ItemStore& items, Findings& findings);

  /// Reads the file of common data, which becomes the catalog's last file, if the form has one.
  /// For repair, a missing or damaged file is a loss.
  /// \param objects  the objects of the metadata. \throws Error  see read_common_file
  void read_common(const SourceStore& store, const std::string& folder, std::span<const ObjectEntry> objects);
  /// The index of that file; kNoIndex if it does not exist.
  std::uint32_t common_file() const { return common_file_; }

  /// Lists the names of the objects. If `looks_inside` is true and the form does not keep objects whole, also lists the
  /// tensors inside them, with `rank_copies`.
  /// \pre the items are set; the catalog contains its other tensors. \throws Error  see add_inner_tensors
  void open(std::vector<ObjectEntry> objects, RankCopies& rank_copies, bool looks_inside);
  /// The objects loaded so far. Their kTensor values are numbers of the catalog's tensors.
  std::vector<Value*> roots() const;

  /// For repair: the destination for items of unsupported classes. \pre the catalog has originals
  ItemKeeper keeper();

  /// See Reader.
  void load_all();
  std::int64_t unread_bytes() const;

 private:
  using Wanted = ItemStore::Wanted;

  void hide_reshaped();
  void look_inside(RankCopies& rank_copies);
  void list_names();
  void list_leaves();
  void sort_objects();
  void keep_originals();
  void keep_common(const std::shared_ptr<const RandomReader>& file, const Item& item);
  /// \param if_tensors  loads nothing if the item contains no tensors.
  LoadedObject load(const std::shared_ptr<FetchedFile>& file, const Wanted& one, bool if_tensors);
  /// For repair: notes that the object's item is damaged, so that its values are written again. \throws Error  only the
  /// item contains some of them
  void check_copied(const std::shared_ptr<FetchedFile>& file, const Item& item, LoadedObject& loaded);
  /// For repair: also records why the storage of its item was lost.
  bool is_lost_object(std::uint32_t object);
  /// Keeps, loses or reports an object that is damaged or unsupported.
  void take_failure(std::uint32_t object, Error& error, const std::string& file);
  /// Does the same for an object whose bytes cannot be read. \throws  the error, if it does not show damage
  void take_unread(Error& error, const Wanted& one);
  void lose_object(std::uint32_t object, const Error& why);
  void report_bad(std::uint32_t object, const Error& error);
  void list_if_faulty(const ObjectEntry& object);
  /// The common data of a loaded item. Null if it contains none, which is a finding or a loss.
  Value* take_common(std::uint32_t object);
  bool is_common(const ObjectEntry& object) const;
  bool is_inner(const Tensor& tensor) const;

  FolderForm form_;
  bool opaque_globals_, objects_loaded_ = false;
  Catalog& catalog_;
  ItemStore& items_;
  Findings& findings_;
  std::uint32_t common_file_ = kNoIndex;
  Value* common_ = nullptr;  ///< The common data, as its file or its item stores it.
  std::shared_ptr<Originals> originals_ = std::make_shared<Originals>();
  std::vector<ObjectEntry> objects_;  ///< By name; objects of several ranks by rank.
  std::vector<LoadedObject> loaded_;  ///< One entry per object; without a root until the object is loaded.
  std::vector<bool> is_reported_;     ///< One entry per object: true if it could not be loaded and that was reported.
};

}  // namespace shard::dcp
