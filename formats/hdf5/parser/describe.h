/// \file
/// Describes libhdf5's datatypes, dataspaces, datasets, attributes and strings as plain data. Inside
/// formats/hdf5/parser only.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "formats/hdf5/described.h"
#include "formats/hdf5/library/handle.h"
#include "formats/hdf5/parser/channel.h"

namespace shard::hdf5 {

/// The memory to which an entry's views point. It is valid until clear(), which is called before the next entry is
/// read.
class EntryArena {
 public:
  /// `limit_bytes` is the largest size of one entry.
  explicit EntryArena(std::int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Memory for `count` items of `bytes` bytes. \throws LibraryError  it exceeds the limit
  std::string& room(std::int64_t count, std::int64_t bytes) {
    std::int64_t wanted = 0;
    if (__builtin_mul_overflow(count, bytes, &wanted) || wanted > limit_bytes_ - held_bytes_) {
      throw_malformed(std::to_string(count) + " elements of " + std::to_string(bytes) +
                      " bytes do not fit in a file of this size");
    }
    held_bytes_ += wanted;
    return texts_.emplace_back(static_cast<std::size_t>(wanted), '\0');
  }
  std::string_view text(std::string_view text) { return room(1, static_cast<std::int64_t>(text.size())).assign(text); }
  void clear() {
    texts_.clear();
    held_bytes_ = 0;
  }

 private:
  std::int64_t limit_bytes_, held_bytes_ = 0;
  std::deque<std::string> texts_;
};

/// \throws LibraryError  byte orders and sizes that described.h cannot express
Type describe_type(hid_t type);
/// Whether elements contain their whole value: no references and no parts of variable length.
bool is_plain(const Type& type);

Space describe_space(hid_t space);
std::int64_t elements_of(const Space& space);

/// A signed number of the interface. \throws LibraryError  it exceeds 63 bits
std::int64_t signed_of(hsize_t value);

// Contents that libhdf5 itself must decode.

/// All attributes of an object, by name, bytewise.
std::vector<Attribute> read_attributes(hid_t object, EntryArena& arena);
/// The elements of a dataset of strings.
std::vector<std::string_view> read_strings(hid_t dataset, const Space& space, EntryArena& arena);
/// The elements of a dataset, unconverted. \pre is_plain() of its type
std::span<const std::byte> read_elements(hid_t dataset, const Space& space, EntryArena& arena);

struct WholeFile {
  Channel& channel;
  FileFacts facts{};
};

/// Fills all fields of a dataset in `entry` except its names and attributes.
/// \throws LibraryError  external storage, filters that cannot be undone; see read_mappings
void describe_dataset(const WholeFile& file, hid_t dataset, Entry& entry, EntryArena& arena);

/// Makes libhdf5, which reads chunks of strings itself, decode h5py's filter lzf. \throws LibraryError
void register_lzf_filter();

}  // namespace shard::hdf5
