#include "formats/dcp/places.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "libshard/core/box.h"

namespace shard::dcp {
namespace {

Error no_place(std::string_view name, const std::string& offsets) {
  const std::string chunk = offsets.empty() ? "" : fmt::format(" its chunk at {}", offsets);
  return damaged(fmt::format("'{}':{}{} has no place in storage_data", name, offsets.empty() ? " it" : "", chunk))
      .of_tensor(name);
}

bool is_empty(const ChunkEntry& chunk) { return std::ranges::find(chunk.sizes, 0) != chunk.sizes.end(); }

/// Whether the item went through zstd. \throws Error kUnsupported  through anything else.
bool is_zstd(std::string_view name, const Value& transforms) {
  if (transforms.kind == ValueKind::kNone) return false;
  if (transforms.kind != ValueKind::kList && transforms.kind != ValueKind::kTuple) {
    throw damaged(fmt::format("'{}': transform_descriptors is no list", name))
        .of_tensor(name)
        .found(type_name(transforms));
  }
  if (transforms.items.empty()) return false;
  std::string shown;
  for (const Value* each : transforms.items) {
    shown += shown.empty() ? "" : ", ";
    shown += each->is_string() ? std::string(each->text) : fmt::format("a {}", type_name(*each));
  }
  if (transforms.items.size() == 1 && (shown == "stream.zstd/1" || shown.starts_with("stream.zstd/1."))) return true;
  throw Error(ErrorCode::kUnsupported, fmt::format("'{}' is stored through the transform {}", name, shown))
      .of_tensor(name)
      .because("of torch's stream transforms only stream.zstd/1 is known, and only alone");
}

class PlaceReader {
 public:
  PlaceReader(Fields& fields, const Targets& targets, Metadata& metadata)
      : fields_(fields), targets_(targets), out_(metadata) {}

  void run(const Value& storage_data) {
    const std::span<Value*> items = Fields::need_mapping(storage_data, "storage_data");
    out_.items.reserve(items.size() / 2);
    for (std::size_t i = 0; i < items.size(); i += 2) read(*items[i], *items[i + 1]);
    settle_chunks();
    for (const ObjectEntry& object : out_.objects) {
      if (object.item == kNoIndex) throw no_place(object.name, "");
    }
  }

 private:
  void read(const Value& key, const Value& place) {
    const Value& index = fields_.state_of(key, Class::kIndex, "a key of storage_data");
    const Value& fqn = Fields::need(index, "fqn", "MetadataIndex");
    if (!fqn.is_string()) throw damaged("MetadataIndex: fqn is no string").found(type_name(fqn));
    const auto found = targets_.find(fqn.text);
    if (found == targets_.end()) {
      throw damaged(fmt::format("storage_data has a place for '{}', which no tensor or object is named", fqn.text))
          .of_tensor(fqn.text);
    }
    std::uint32_t& slot = slot_of(found->first, found->second, index);
    if (slot != kNoIndex) {
      throw damaged(fmt::format("storage_data has two places for one chunk of '{}'", fqn.text)).of_tensor(fqn.text);
    }
    slot = static_cast<std::uint32_t>(out_.items.size());
    out_.items.push_back(item_of(found->first, place));
  }

  /// The item number, still to be set, of what a MetadataIndex names.
  std::uint32_t& slot_of(std::string_view name, Target target, const Value& index) {
    if (target.is_object) return out_.objects[target.index].item;
    const TensorEntry& tensor = out_.tensors[target.index];
    const Value* offset = find_key(index, "offset");
    const bool has_offset = offset != nullptr && offset->kind != ValueKind::kNone;
    const Dims offsets =
        has_offset ? fields_.dims(*offset, name, "storage_data's offset") : fields_.zeros(tensor.size.size());
    const Value* hint = find_key(index, "index");
    if (hint != nullptr && hint->kind == ValueKind::kInt && hint->number >= 0 && hint->number < tensor.chunk_count) {
      ChunkEntry& hinted = out_.chunks[tensor.first_chunk + static_cast<std::uint32_t>(hint->number)];
      if (hinted.offsets == offsets) return hinted.item;
    }
    ChunkEntry* chunk = chunk_at(target.index, offsets);
    if (chunk == nullptr) {
      throw damaged(fmt::format("storage_data has a place for a chunk of '{}' at {}, where none begins", name,
                                to_string(offsets.span())))
          .of_tensor(name);
    }
    return chunk->item;
  }

  struct Corner {
    std::uint32_t tensor;
    Dims offsets;
    bool operator==(const Corner&) const = default;
  };
  struct CornerHash {
    std::size_t operator()(const Corner& corner) const {
      std::size_t hash = corner.tensor;
      for (const std::int64_t offset : corner.offsets) {
        hash = (hash ^ static_cast<std::size_t>(offset)) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
      }
      return hash;
    }
  };

  /// The chunk of a tensor that begins there: of several the first that is not empty. Null where none does.
  ChunkEntry* chunk_at(std::uint32_t tensor, Dims offsets) {
    if (corners_.empty()) index_corners();
    const auto found = corners_.find({tensor, offsets});
    return found == corners_.end() ? nullptr : &out_.chunks[found->second];
  }

  void index_corners() {
    corners_.reserve(out_.chunks.size());
    for (std::uint32_t t = 0; t < out_.tensors.size(); ++t) {
      const TensorEntry& tensor = out_.tensors[t];
      for (std::uint32_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c) {
        const auto [entry, fresh] = corners_.emplace(Corner{t, out_.chunks[c].offsets}, c);
        if (!fresh && is_empty(out_.chunks[entry->second]) && !is_empty(out_.chunks[c])) entry->second = c;
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
    if (is_empty(chunk)) return false;
    throw no_place(name, to_string(chunk.offsets.span()));
  }

  Item item_of(std::string_view name, const Value& value) {
    const Value& state = fields_.state_of(value, Class::kStorageInfo, name);
    const Value& path = Fields::need(state, "relative_path", "_StorageInfo");
    if (!path.is_string()) {
      throw damaged("_StorageInfo: relative_path is no string").of_tensor(name).found(type_name(path));
    }
    Item item;
    item.file = file_of(path.text, name);
    item.offset = Fields::need_natural(state, "offset", "_StorageInfo");
    if (find_key(state, "length") != nullptr) item.length = Fields::need_natural(state, "length", "_StorageInfo");
    if (const Value* transforms = find_key(state, "transform_descriptors")) item.zstd = is_zstd(name, *transforms);
    return item;
  }

  std::uint32_t file_of(std::string_view path, std::string_view name) {
    if (!out_.files.empty() && out_.files[last_file_] == path) return last_file_;
    const auto [found, fresh] = files_.emplace(std::string(path), static_cast<std::uint32_t>(out_.files.size()));
    if (fresh) {
      const bool plain = !path.empty() && path != "." && path != ".." &&
                         path.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
      if (!plain) {
        const std::string shown(path.substr(0, path.find('\0')));  // Messages end at a NUL.
        throw damaged(fmt::format("'{}' lies in '{}', which is no plain file name", name, shown)).of_tensor(name);
      }
      out_.files.emplace_back(path);
    }
    return last_file_ = found->second;
  }

  Fields& fields_;
  const Targets& targets_;
  Metadata& out_;
  std::uint32_t last_file_ = 0;
  std::unordered_map<std::string, std::uint32_t> files_;
  std::unordered_map<Corner, std::uint32_t, CornerHash> corners_;
};

}  // namespace

void read_places(Fields& fields, const Value& storage_data, const Targets& targets, Metadata& metadata) {
  PlaceReader(fields, targets, metadata).run(storage_data);
}

}  // namespace shard::dcp
