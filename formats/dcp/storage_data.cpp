#include "formats/dcp/storage_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "formats/parts/pickle/attributes.h"
#include "libshard/core/box.h"

namespace shard::dcp {
namespace {

Error bad_places(const std::string& why) { return pickle::malformed("storage_data", why); }

Error no_place(std::string_view name, const std::string& offsets) {
  const std::string chunk = offsets.empty() ? "" : fmt::format(" its chunk at {}", offsets);
  return bad_places(fmt::format("'{}':{}{} has no place", name, offsets.empty() ? " it" : "", chunk)).of_tensor(name);
}

/// Whether the item went through zstd. \throws Error kUnsupported  through anything else.
bool is_zstd(std::string_view name, const Value& transforms) {
  if (transforms.kind == ValueKind::kNone) return false;
  const std::span<Value* const> items = pickle::sequence(transforms, "transform_descriptors");
  if (items.empty()) return false;
  std::string shown;
  for (const Value* each : items) {
    shown += shown.empty() ? "" : ", ";
    shown += each->is_string() ? std::string(each->text()) : fmt::format("a {}", type_name(*each));
  }
  if (items.size() == 1 && (shown == "stream.zstd/1" || shown.starts_with("stream.zstd/1."))) return true;
  throw Error(ErrorCode::kUnsupported, fmt::format("'{}' is stored through the transform {}", name, shown))
      .of_tensor(name)
      .because("of torch's stream transforms only stream.zstd/1 is known, and only alone");
}

class StorageDataReader {
 public:
  StorageDataReader(Arena& arena, MetadataClasses& classes, const Targets& targets, Metadata& metadata)
      : arena_(arena), classes_(classes), targets_(targets), out_(metadata) {}

  void run(const Value& storage_data) {
    const std::span<Value*> items = pickle::mapping(storage_data, "storage_data");
    out_.items.reserve(items.size() / 2);
    for (std::size_t i = 0; i < items.size(); i += 2) read(*items[i], *items[i + 1]);
    settle_chunks();
    for (const ObjectEntry& object : out_.objects) {
      if (object.item == kNoIndex) throw no_place(object.name, "");
    }
  }

 private:
  void read(const Value& key, const Value& place) {
    classes_.need(key, Class::kIndex);
    const std::string_view name = pickle::string(pickle::need(key, "fqn"), "fqn of a MetadataIndex");
    const Target* target = targets_.find(name);
    if (target == nullptr) {
      throw bad_places(fmt::format("it has a location for '{}', but there is no tensor or object of that name", name))
          .of_tensor(name);
    }
    try {
      std::uint32_t& slot = slot_of(name, *target, key);
      if (slot != kNoIndex) throw bad_places(fmt::format("it has two places for one chunk of '{}'", name));
      slot = static_cast<std::uint32_t>(out_.items.size());
      out_.items.push_back(item_of(name, place));
    } catch (Error& error) {
      throw error.of_tensor(name);
    }
  }

  /// The item number, still to be set, of what a MetadataIndex names.
  std::uint32_t& slot_of(std::string_view name, Target target, const Value& index) {
    if (target.is_object) return out_.objects[target.index].item;
    const TensorEntry& tensor = out_.tensors[target.index];
    const Value* offset = pickle::attribute(index, "offset");
    const bool has_offset = offset != nullptr && offset->kind != ValueKind::kNone;
    const Dims offsets =
        has_offset ? pickle::dims(arena_, *offset, "offset of a MetadataIndex") : arena_.zeros(tensor.size.size());
    const Value* hint = pickle::attribute(index, "index");
    if (hint != nullptr && hint->kind == ValueKind::kInt && hint->number >= 0 && hint->number < tensor.chunk_count) {
      ChunkEntry& hinted = out_.chunks[tensor.first_chunk + static_cast<std::uint32_t>(hint->number)];
      if (hinted.offsets == offsets) return hinted.item;
    }
    ChunkEntry* chunk = chunk_at(target.index, offsets);
    if (chunk == nullptr) {
      throw bad_places(
          fmt::format("it has a place for a chunk of '{}' at {}, where none begins", name, to_string(offsets.span())));
    }
    return chunk->item;
  }

  struct Corner {
    std::uint32_t tensor;
    Dims offsets;
    bool operator==(const Corner&) const = default;
  };
  struct CornerHash {
    KeyedHash hash;
    std::uint64_t operator()(const Corner& corner) const {
      return hash(std::pair(corner.tensor, hash(corner.offsets.span())));
    }
  };

  /// The chunk of a tensor that begins there: of several the first that is not empty. Null where none does.
  ChunkEntry* chunk_at(std::uint32_t tensor, Dims offsets) {
    if (corners_.empty()) index_corners();
    const std::uint32_t* found = corners_.find(Corner{tensor, offsets});
    return found == nullptr ? nullptr : &out_.chunks[*found];
  }

  void index_corners() {
    corners_.reserve(out_.chunks.size());
    for (std::uint32_t t = 0; t < out_.tensors.size(); ++t) {
      const TensorEntry& tensor = out_.tensors[t];
      for (std::uint32_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c) {
        const auto [first, is_new] = corners_.try_emplace(Corner{t, out_.chunks[c].offsets}, c);
        if (!is_new && is_empty(out_.chunks[first].sizes) && !is_empty(out_.chunks[c].sizes)) first = c;
      }
    }
  }

  void settle_chunks() {
    const auto has_item = [](const ChunkEntry& chunk) { return chunk.item != kNoIndex; };
    if (std::ranges::all_of(out_.chunks, has_item)) return;
    std::vector<ChunkEntry> kept;
    kept.reserve(out_.chunks.size());
    for (std::uint32_t t = 0; t < out_.tensors.size(); ++t) {
      TensorEntry& tensor = out_.tensors[t];
      const std::uint32_t begin = static_cast<std::uint32_t>(kept.size());
      for (std::uint32_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c) {
        if (!has_item(out_.chunks[c]) && !adopt_item(t, out_.chunks[c])) continue;
        kept.push_back(out_.chunks[c]);
      }
      tensor.first_chunk = begin;
      tensor.chunk_count = static_cast<std::uint32_t>(kept.size()) - begin;
    }
    out_.chunks = std::move(kept);
  }

  /// \returns false for an empty chunk that can be left out.
  bool adopt_item(std::uint32_t tensor, ChunkEntry& chunk) {
    ChunkEntry* holder = chunk_at(tensor, chunk.offsets);
    const std::string_view name = out_.tensors[tensor].name;
    if (holder == &chunk || holder->item == kNoIndex) throw no_place(name, to_string(chunk.offsets.span()));
    if (holder->sizes == chunk.sizes) {
      chunk.item = holder->item;
      return true;
    }
    if (is_empty(chunk.sizes)) return false;
    throw no_place(name, to_string(chunk.offsets.span()));
  }

  Item item_of(std::string_view name, const Value& value) {
    classes_.need(value, Class::kStorageInfo);
    Item item;
    item.file = file_of(pickle::string(pickle::need(value, "relative_path"), "relative_path of a _StorageInfo"), name);
    item.offset = pickle::natural(pickle::need(value, "offset"), "offset of a _StorageInfo");
    if (const Value* length = pickle::attribute(value, "length")) {
      item.length = pickle::natural(*length, "length of a _StorageInfo");
    }
    if (const Value* transforms = pickle::attribute(value, "transform_descriptors")) {
      item.zstd = is_zstd(name, *transforms);
    }
    return item;
  }

  std::uint32_t file_of(std::string_view path, std::string_view name) {
    if (!out_.files.empty() && out_.files[last_file_] == path) return last_file_;
    const auto [number, is_new] = files_.try_emplace(path, static_cast<std::uint32_t>(out_.files.size()));
    if (is_new) {
      const bool plain = !path.empty() && path != "." && path != ".." &&
                         path.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
      if (!plain) {
        const std::string shown(path.substr(0, path.find('\0')));  // Messages end at a NUL.
        throw bad_places(fmt::format("'{}' lies in '{}', which is not a plain file name", name, shown));
      }
      out_.files.emplace_back(path);
    }
    return last_file_ = number;
  }

  Arena& arena_;
  MetadataClasses& classes_;
  const Targets& targets_;
  Metadata& out_;
  std::uint32_t last_file_ = 0;
  HashMap<std::string_view, std::uint32_t> files_;
  HashMap<Corner, std::uint32_t, CornerHash> corners_;
};

}  // namespace

void read_storage_data(Arena& arena, MetadataClasses& classes, const Value& storage_data, const Targets& targets,
                       Metadata& metadata) {
  StorageDataReader(arena, classes, targets, metadata).run(storage_data);
}

}  // namespace shard::dcp
