/// \file Originals: the source bytes of objects whose values are shown only in part.
///
/// A value contains plain data. Classes outside the list and tensors inside objects are opaque in it, so most writers
/// refuse it. A format that preserves every object when it is rewritten to itself stores the original content here. The
/// content is copied, and never resolved or executed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "libshard/catalog/path.h"
#include "libshard/core/arena.h"
#include "libshard/core/dtype.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value.h"

namespace shard {

/// The form in which a source's format stores an object, so that a writer of the same format can store it in the same
/// form. All elements of an array share one StoredObject, although each element is an object. Ownership: views into the
/// source's arena.
struct StoredObject {
  std::string_view form;               ///< Type and shape, for comparisons. Equal forms are equal texts.
  std::string_view shown;              ///< The form in words: "string of 3 bytes, scalar".
  std::span<const std::byte> bytes{};  ///< Form and content, in the format's encoding.
  std::uint32_t objects = 1;           ///< The number of objects that share it.
  std::uint32_t depth = 0;             ///< The last parts of each object's path that are indexes into the array.
};

/// Original content by value. Ownership: values are in the source catalog's arena. They are identified by their node,
/// which a pruned tree shares.
struct Originals {
  /// An object with separate bytes in a file: a storage of the source catalog that contains exactly these bytes.
  struct Item {
    std::uint32_t storage;
    std::int64_t bytes;
  };

  /// A box of a tensor, or an object, that is copied unchanged.
  struct KeptItem {
    Item item;
    std::int32_t rank = -1;  ///< The rank that wrote it.
    Dims offsets{}, sizes{};
  };
  /// A tensor or an object whose items are copied unchanged, because this build does not read their class. In the
  /// catalog, the tensor is `damaged`, and the object is missing.
  struct Kept {
    std::string_view name;
    Path path{};
    bool is_object = false;
    Dims shape{};
    DType dtype{};
    bool requires_grad = false;
    std::vector<KeptItem> items{};  ///< One item for an object; for a tensor, one per box.
  };

  std::string_view format;                ///< The format whose writer copies them.
  std::optional<std::int64_t> iteration;  ///< The training step in the folder's name, if the object may be lost.
  std::vector<Kept> kept;
  /// The original content of a value: a kOpaque's global, call or tensor; the namespace that a dict represents. Null:
  /// only the whole item that contains the value is known.
  HashMap<const Value*, Value*> values;
  /// The storages that persistent ids in them refer to, by number ("0", "1", ...): little-endian elements.
  std::vector<std::vector<std::byte>> storages;
  HashMap<const Value*, Item> items;
  HashMap<const Value*, const StoredObject*> stored;  ///< Keys are the values of objects.

  /// The form in which `format` stores the object with that value, or null.
  const StoredObject* stored_as(const Value* value) const {
    const StoredObject* const* const found = stored.find(value);
    return found == nullptr ? nullptr : *found;
  }

  /// Adds the values of an object's pickle. If the object is in a separate item, their original content is not stored.
  void add(const HashMap<const Value*, Value*>& loaded, bool in_item) {
    for (const auto& [value, original] : loaded.entries()) {
      if (in_item) {
        values.try_emplace(value, nullptr);
      } else if (original != nullptr) {
        values.try_emplace(value, original);
      }
    }
  }
  /// Drops the mapping from values to originals.
  void forget() {
    HashMap<const Value*, Value*> in_items;
    for (const auto& [value, original] : values.entries()) {
      if (original == nullptr) in_items.try_emplace(value, nullptr);
    }
    values = std::move(in_items);
    storages.clear();
  }
};

}  // namespace shard
