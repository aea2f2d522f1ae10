/// \file
/// Originals: the source bytes behind objects whose values are shown only in part.
///
/// A value shows plain data. Classes outside the list and tensors inside objects are opaque in it, so no writer takes
/// it. A format that keeps every object when it is written from itself remembers here what stood there, inert: it is
/// copied, never resolved or run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "libshard/catalog/path.h"
#include "libshard/core/arena.h"
#include "libshard/core/dtype.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value.h"

namespace shard {

/// How a source's format stores an object, so that a writer of the same format can store it in the same way. One for
/// all elements of an array: each element is an object. Ownership: views into the source's arena.
struct StoredObject {
  std::string_view form;               ///< Type and shape, for comparisons: equal forms are equal texts.
  std::string_view shown;              ///< The form in words: "string of 3 bytes, scalar".
  std::span<const std::byte> bytes{};  ///< Form and content, as the format encodes them.
  std::uint32_t objects = 1;           ///< How many objects share it.
  std::uint32_t depth = 0;             ///< How many parts at the end of each object's path are indexes into the array.
};

/// Ownership: values lie in the source catalog's arena. They are told by their node, which a pruned tree shares.
struct Originals {
  /// An object that has bytes of its own in a file: a storage of the source catalog that is all of them.
  struct Item {
    std::uint32_t storage;
    std::int64_t bytes;
  };

  /// A box of a tensor, or an object, that is copied as it is.
  struct KeptItem {
    Item item;
    std::int32_t rank = -1;  ///< The rank that wrote it.
    Dims offsets{}, sizes{};
  };
  /// A tensor or an object whose items are copied as they are, because this build does not read their class. The
  /// catalog has the tensor as `damaged`, and not the object.
  struct Kept {
    std::string_view name;
    Path path{};
    bool is_object = false;
    Dims shape{};
    DType dtype{};
    bool requires_grad = false;
    std::vector<KeptItem> items{};  ///< One of an object; of a tensor one for each box.
  };

  std::string_view format;  ///< The one whose writer carries them over.
  std::vector<Kept> kept;
  /// What a value stands for: a kOpaque's global, call or tensor; a dict's namespace, whose state it is. Null: that is
  /// known with the whole item alone in which it lies.
  HashMap<const Value*, Value*> values;
  /// The storages that persistent ids in them name, by number ("0", "1", ...): little-endian elements.
  std::vector<std::vector<std::byte>> storages;
  HashMap<const Value*, Item> items;
  HashMap<const Value*, const StoredObject*> stored;  ///< By the value of an object.

  /// How `format` stores the object of that value, or null.
  const StoredObject* stored_as(const Value* value) const {
    const StoredObject* const* const found = stored.find(value);
    return found == nullptr ? nullptr : *found;
  }

  /// Takes over the values of an object's pickle: of one that lies in an item of its own without what they stand for.
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
