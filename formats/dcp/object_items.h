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
#include "formats/dcp/originals.h"
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

  /// Adds a tensor of the catalog to `originals`, and marks it `damaged`. A box whose item is damaged is lost instead.
  /// \param why  is_unread is true for it
  /// \throws Error kUnsupported  its items cannot be copied as they are: compressed, cut, or of a reshaped tensor
  void keep_tensor(std::uint32_t tensor, const Error& why);
  /// The same of an object. \returns why its item is damaged; nothing: it is kept. \throws Error  the same
  std::optional<Error> keep_object(const ObjectEntry& object, const Error& why);

 private:
  bool is_copied(const Item& item) const { return item.length >= 0 && !item.zstd && !item.is_cut; }
  std::optional<Error> fault_of(std::uint32_t item) const;
  Originals::KeptItem keep(std::uint32_t item);
};

/// Fills the objects of the catalog: with names when the folder is opened, with leaves and values in `load_all`. What
/// is wrong with one object is reported to `findings`, or is a loss if they go on. Threads: one.
class ObjectItems {
 public:
  /// \param opaque_globals  see OpenOptions; all objects of a form that keeps them whole are read so.
  /// Ownership: all must outlive this.
  ObjectItems(const FolderForm& form, bool opaque_globals, Catalog& catalog, ItemStore& items, Findings& findings);

  /// Reads the file of common data, which becomes the catalog's last, if the form has one.
  /// \param objects  those of the metadata. \throws Error  see read_common_file
  void read_common(const SourceStore& store, const std::string& folder, std::span<const ObjectEntry> objects);
  /// The index of that file; kNoIndex: there is none.
  std::uint32_t common_file() const { return common_file_; }

  /// Lists the objects' names; and where it looks inside and the form does not keep objects whole, the tensors in them,
  /// with `rank_copies`. \pre the items are set, the catalog has its other tensors. \throws Error  see
  /// add_inner_tensors
  void open(std::vector<ObjectEntry> objects, RankCopies& rank_copies, bool looks_inside);
  /// What was loaded by then, whose kTensor values number tensors of the catalog.
  std::vector<Value*> roots() const;

  /// For repair: where items of classes that are not read are kept; the catalog has the originals then.
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
  /// \param if_tensors  nothing is loaded where the item holds none.
  LoadedObject load(const std::shared_ptr<FetchedFile>& file, const Wanted& one, bool if_tensors);
  /// For repair: also notes what the storage of its item was lost for.
  bool is_lost_object(std::uint32_t object);
  /// What is wrong with an object, or not read, is kept, lost or reported.
  void take_failure(std::uint32_t object, Error& error, const std::string& file);
  void lose_object(std::uint32_t object, const Error& why);
  void report_bad(std::uint32_t object, const Error& error);
  void list_if_faulty(const ObjectEntry& object);
  /// The common data of a loaded item; null where it holds none, which is a finding or a loss.
  Value* take_common(std::uint32_t object);
  bool is_common(const ObjectEntry& object) const;
  bool is_inner(const Tensor& tensor) const;

  FolderForm form_;
  bool opaque_globals_, objects_loaded_ = false;
  Catalog& catalog_;
  ItemStore& items_;
  Findings& findings_;
  std::uint32_t common_file_ = kNoIndex;
  Value* common_ = nullptr;  ///< The common data, as its file or its item holds it.
  std::shared_ptr<Originals> originals_ = std::make_shared<Originals>();
  std::vector<ObjectEntry> objects_;  ///< By name and rank where they are of ranks.
  std::vector<LoadedObject> loaded_;  ///< Of each object; without a root until it is loaded.
  std::vector<bool> is_reported_;     ///< Of each object: it cannot be loaded, which was reported.
};

}  // namespace shard::dcp
