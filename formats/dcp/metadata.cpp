#include "formats/dcp/metadata.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <unordered_map>

#include "formats/pickle/pickle.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"

namespace shard::dcp {
namespace {

Error damaged(const std::string& message) { return Error(ErrorCode::kCorruption, message).of_kind("bad_pickle"); }

/// The classes that `.metadata` is made of, whatever module they lived in.
enum class Class {
  kMetadata,
  kTensor,
  kBytes,
  kChunk,
  kProperties,
  kIndex,
  kStorageInfo,
  kSize,
};

struct ClassName {
  Class id;
  std::string_view name;
  std::array<std::string_view, 3> modules;
};

constexpr std::string_view kNew = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kOld = "torch.distributed._shard.checkpoint.metadata";
constexpr std::array<ClassName, 8> kClasses{{
    {Class::kMetadata, "Metadata", {kNew, kOld, {}}},
    {Class::kTensor, "TensorStorageMetadata", {kNew, kOld, {}}},
    {Class::kBytes, "BytesStorageMetadata", {kNew, kOld, {}}},
    {Class::kChunk, "ChunkStorageMetadata", {kNew, kOld, {}}},
    {Class::kProperties, "TensorProperties", {kNew, kOld, "torch.distributed._shard.sharded_tensor.metadata"}},
    {Class::kIndex, "MetadataIndex", {kNew, kOld, {}}},
    {Class::kStorageInfo,
     "_StorageInfo",
     {"torch.distributed.checkpoint.filesystem", "torch.distributed._shard.checkpoint.filesystem", {}}},
    {Class::kSize, "Size", {"torch", {}, {}}},
}};

const ClassName& class_name(Class id) { return kClasses[static_cast<std::size_t>(id)]; }

/// Walks the value tree of one pickle into a Metadata.
class Parser {
 public:
  explicit Parser(Arena& arena) : arena_(arena) {}

  Metadata run(const Value& root) {
    const Value& state = state_of(root, Class::kMetadata, "the pickle");
    out_.maker = root.callee->module == kOld ? "torch<=1.13" : "torch>=2.0";
    state_dict(need(state, "state_dict_metadata", "Metadata"));
    if (const Value* planner = find_key(state, "planner_data"); planner && planner->kind != ValueKind::kNone) {
      paths(*planner);
    }
    places(need(state, "storage_data", "Metadata"));
    settle_chunks();
    for (const ObjectEntry& object : out_.objects) {
      if (object.item == kNoIndex) throw no_place(object.name, "");
    }
    return std::move(out_);
  }

 private:
  /// Where a name leads: a tensor, or with the top bit an object.
  static constexpr std::uint32_t kObjectBit = 0x80000000;

  bool is(const Value& value, Class id) {
    if (value.kind != ValueKind::kCall || value.callee == nullptr) return false;
    const Value*& seen = seen_[static_cast<std::size_t>(id)];
    if (value.callee == seen) return true;
    const ClassName& wanted = class_name(id);
    if (value.callee->kind != ValueKind::kGlobal || value.callee->text != wanted.name) return false;
    for (const std::string_view module : wanted.modules) {
      if (!module.empty() && value.callee->module == module) {
        seen = value.callee;
        return true;
      }
    }
    return false;
  }

  /// The attributes of an object of a class: BUILD's dict, or the dict of slots behind it.
  const Value& state_of(const Value& object, Class id, std::string_view what) {
    const Value& state = raw_state_of(object, id, what);
    if (state.kind == ValueKind::kTuple && state.items.size() == 2 && is_mapping(*state.items[1])) {
      return *state.items[1];
    }
    if (!is_mapping(state)) {
      throw damaged(fmt::format("{}: {} has no attributes", what, class_name(id).name)).found(type_name(state));
    }
    return state;
  }

  const Value& raw_state_of(const Value& object, Class id, std::string_view what) {
    if (!is(object, id)) {
      throw damaged(fmt::format("{} is no {}", what, class_name(id).name))
          .expected(class_name(id).name)
          .found(type_name(object));
    }
    if (object.extra == nullptr || object.extra->state == nullptr) {
      throw damaged(fmt::format("{}: {} has no attributes", what, class_name(id).name));
    }
    return *object.extra->state;
  }

  static const Value& need(const Value& attributes, std::string_view name, std::string_view what) {
    const Value* value = find_key(attributes, name);
    if (value == nullptr) throw damaged(fmt::format("{} has no {}", what, name));
    return *value;
  }

  static std::int64_t need_int(const Value& attributes, std::string_view name, std::string_view what) {
    const Value& value = need(attributes, name, what);
    if (value.kind != ValueKind::kInt || value.number < 0) {
      throw damaged(fmt::format("{}: {} is no number of bytes", what, name)).found(type_name(value));
    }
    return value.number;
  }

  static std::span<Value*> need_mapping(const Value& value, std::string_view what) {
    if (!is_mapping(value)) throw damaged(fmt::format("{} is no dict", what)).found(type_name(value));
    return mapping_items(value);
  }

  /// A torch.Size, or a plain tuple or list of numbers.
  Dims dims(const Value& value, std::string_view name, std::string_view what) {
    const Value* list = &value;
    if (is(value, Class::kSize) && value.items.size() == 1) list = value.items[0];
    if (is(value, Class::kSize) && value.items.empty()) return {};
    if (list->kind != ValueKind::kTuple && list->kind != ValueKind::kList) {
      throw damaged(fmt::format("tensor '{}': {} is no torch.Size", name, what))
          .of_tensor(name)
          .found(type_name(value));
    }
    if (list->items.size() > kMaxDims) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("tensor '{}' has {} dimensions, at most {} are read", name, list->items.size(), kMaxDims))
          .of_tensor(name);
    }
    std::array<std::int64_t, kMaxDims> numbers;
    std::size_t count = 0;
    for (const Value* item : list->items) {
      if (item->kind != ValueKind::kInt || item->number < 0) {
        throw damaged(fmt::format("tensor '{}': {} holds what is no size", name, what))
            .of_tensor(name)
            .found(item->kind == ValueKind::kInt ? std::to_string(item->number) : std::string(type_name(*item)));
      }
      numbers[count++] = item->number;
    }
    return arena_.dims({numbers.data(), count});
  }

  void state_dict(const Value& value) {
    const std::span<Value*> items = need_mapping(value, "state_dict_metadata");
    names_.reserve(items.size() / 2);
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (!items[i]->is_string()) {
        throw damaged("state_dict_metadata: a name is no string").found(type_name(*items[i]));
      }
      const std::string_view name = arena_.copy(items[i]->text);
      const bool is_bytes = is(*items[i + 1], Class::kBytes);
      const std::uint32_t target = is_bytes ? static_cast<std::uint32_t>(out_.objects.size()) | kObjectBit
                                            : static_cast<std::uint32_t>(out_.tensors.size());
      names_.emplace(name, target);  // The keys of a dict differ.
      if (is_bytes) {
        out_.objects.push_back({name, {}, kNoIndex});
      } else {
        tensor(name, *items[i + 1]);
      }
    }
  }

  void tensor(std::string_view name, const Value& value) {
    const Value& state = state_of(value, Class::kTensor, name);
    TensorEntry entry;
    entry.name = name;
    properties(need(state, "properties", name), entry);
    entry.size = dims(need(state, "size", name), name, "size");
    const Value& chunks = need(state, "chunks", name);
    if (chunks.kind != ValueKind::kList && chunks.kind != ValueKind::kTuple) {
      throw damaged(fmt::format("tensor '{}': chunks is no list", name)).of_tensor(name).found(type_name(chunks));
    }
    entry.first_chunk = static_cast<std::uint32_t>(out_.chunks.size());
    entry.chunk_count = static_cast<std::uint32_t>(chunks.items.size());
    for (const Value* chunk : chunks.items) out_.chunks.push_back(chunk_of(entry, *chunk));
    out_.tensors.push_back(entry);
  }

  ChunkEntry chunk_of(const TensorEntry& tensor, const Value& value) {
    const Value& state = state_of(value, Class::kChunk, tensor.name);
    ChunkEntry chunk;
    chunk.offsets = dims(need(state, "offsets", tensor.name), tensor.name, "a chunk's offsets");
    chunk.sizes = dims(need(state, "sizes", tensor.name), tensor.name, "a chunk's sizes");
    if (chunk.offsets.size() != tensor.size.size() || chunk.sizes.size() != tensor.size.size()) {
      throw Error(ErrorCode::kCorruption, fmt::format("tensor '{}' has {} dimensions, a chunk of it another number",
                                                      tensor.name, tensor.size.size()))
          .of_tensor(tensor.name)
          .expected(to_string(tensor.size.span()))
          .found(fmt::format("offsets {}, sizes {}", to_string(chunk.offsets.span()), to_string(chunk.sizes.span())))
          .of_kind("shape_mismatch");
    }
    return chunk;
  }

  /// A tuple (dtype, layout, requires_grad, memory format, pin_memory, ...) of five or more, or a dict of those.
  void properties(const Value& value, TensorEntry& entry) {
    const Value& state = raw_state_of(value, Class::kProperties, entry.name);
    if (value.callee->module == kNew) out_.maker = "torch>=2.3";  // Before, the class was ShardedTensor's.
    const Value *dtype = nullptr, *layout = nullptr, *grad = nullptr;
    if (state.kind == ValueKind::kTuple && state.items.size() >= 5) {
      dtype = state.items[0], layout = state.items[1], grad = state.items[2];
    } else {
      const Value& named = state_of(value, Class::kProperties, entry.name);
      dtype = &need(named, "dtype", entry.name);
      layout = find_key(named, "layout"), grad = find_key(named, "requires_grad");
    }
    entry.dtype = dtype_of(entry.name, *dtype);
    if (layout != nullptr) check_layout(entry.name, *layout);
    entry.requires_grad = grad != nullptr && grad->kind == ValueKind::kBool && grad->boolean;
  }

  DType dtype_of(std::string_view name, const Value& value) {
    if (&value == last_dtype_value_) return last_dtype_;
    std::optional<DType> dtype;
    if (value.kind == ValueKind::kGlobal && value.module == "torch") dtype = dtype_of_name(value.text);
    if (!dtype) {
      throw damaged(fmt::format("tensor '{}': its dtype is none of torch's", name))
          .of_tensor(name)
          .found(value.kind == ValueKind::kGlobal ? fmt::format("{}.{}", value.module, value.text)
                                                  : std::string(type_name(value)));
    }
    last_dtype_value_ = &value;
    return last_dtype_ = *dtype;
  }

  static void check_layout(std::string_view name, const Value& value) {
    const bool named = value.is_call_of("torch.serialization", "_get_layout") && value.items.size() == 1 &&
                       value.items[0]->is_string();
    if (!named) throw damaged(fmt::format("tensor '{}': its layout is none of torch's", name)).of_tensor(name);
    if (value.items[0]->text != "torch.strided") {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("tensor '{}' has the layout {}, only torch.strided is read", name, value.items[0]->text))
          .of_tensor(name);
    }
  }

  void paths(const Value& planner) {
    if (!is_mapping(planner)) {
      out_.warnings.push_back(
          fmt::format(".metadata: planner_data is a {} and was left aside: names are not nested", type_name(planner)));
      return;
    }
    const std::span<Value*> items = mapping_items(planner);
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (!items[i]->is_string() || items[i + 1]->kind != ValueKind::kTuple) {
        throw damaged("planner_data does not lead from names to tuples").found(type_name(*items[i + 1]));
      }
      const auto found = names_.find(items[i]->text);
      if (found == names_.end()) continue;  // A name of a rank that wrote nothing for it.
      Path& path = (found->second & kObjectBit) != 0 ? out_.objects[found->second & ~kObjectBit].path
                                                     : out_.tensors[found->second].path;
      path = path_of(found->first, *items[i + 1]);
    }
  }

  Path path_of(std::string_view name, const Value& tuple) {
    const std::span<Value*> parts = tuple.items;
    if (parts.empty()) throw damaged(fmt::format("planner_data: '{}' has an empty path", name)).of_tensor(name);
    const std::span<PathPart> path = arena_.array<PathPart>(parts.size());
    std::size_t at = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i]->is_string()) {
        const std::string_view key = parts[i]->text;
        const bool in_name = at <= name.size() && name.substr(at).starts_with(key);  // Mostly: then it costs no memory.
        path[i].key = in_name ? name.substr(at, key.size()) : arena_.copy(key);
        at += key.size() + 1;
      } else if (parts[i]->kind == ValueKind::kInt) {
        path[i].is_index = true;
        path[i].index = parts[i]->number;
        at += fmt::formatted_size("{}", parts[i]->number) + 1;
      } else {
        throw damaged(fmt::format("planner_data: the path of '{}' holds what is neither key nor index", name))
            .of_tensor(name)
            .found(type_name(*parts[i]));
      }
    }
    return compact_path(path, name);
  }

  void places(const Value& storage_data) {
    const std::span<Value*> items = need_mapping(storage_data, "storage_data");
    out_.items.reserve(items.size() / 2);
    for (std::size_t i = 0; i < items.size(); i += 2) {
      const Value& index = state_of(*items[i], Class::kIndex, "a key of storage_data");
      const Value& fqn = need(index, "fqn", "MetadataIndex");
      if (!fqn.is_string()) throw damaged("MetadataIndex: fqn is no string").found(type_name(fqn));
      const auto found = names_.find(fqn.text);
      if (found == names_.end()) {
        throw damaged(fmt::format("storage_data has a place for '{}', which no tensor or object is named", fqn.text))
            .of_tensor(fqn.text);
      }
      std::uint32_t& slot = slot_of(found->first, found->second, index);
      if (slot != kNoIndex) {
        throw damaged(fmt::format("storage_data has two places for one chunk of '{}'", fqn.text)).of_tensor(fqn.text);
      }
      slot = static_cast<std::uint32_t>(out_.items.size());
      out_.items.push_back(item_of(found->first, *items[i + 1]));
    }
  }

  /// The item index, still to be set, of what a MetadataIndex names.
  std::uint32_t& slot_of(std::string_view name, std::uint32_t target, const Value& index) {
    if ((target & kObjectBit) != 0) return out_.objects[target & ~kObjectBit].item;
    const TensorEntry& tensor = out_.tensors[target];
    const Value* offset = find_key(index, "offset");
    const bool has_offset = offset != nullptr && offset->kind != ValueKind::kNone;
    const Dims offsets = has_offset ? dims(*offset, name, "storage_data's offset") : arena_.zeros(tensor.size.size());
    const Value* hint = find_key(index, "index");
    if (hint != nullptr && hint->kind == ValueKind::kInt && hint->number >= 0 && hint->number < tensor.chunk_count) {
      ChunkEntry& hinted = out_.chunks[tensor.first_chunk + static_cast<std::uint32_t>(hint->number)];
      if (hinted.offsets == offsets) return hinted.item;
    }
    ChunkEntry* chunk = chunk_at(target, offsets);
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

  static bool is_empty(const ChunkEntry& chunk) {
    for (const std::int64_t size : chunk.sizes) {
      if (size == 0) return true;
    }
    return false;
  }

  /// One place serves all chunks that begin at one corner, as storage_data's keys do not tell them apart: equal boxes
  /// share it, and of an empty and a full one it is the full one's.
  void settle_chunks() {
    bool complete = true;
    for (const ChunkEntry& chunk : out_.chunks) complete = complete && chunk.item != kNoIndex;
    if (complete) return;
    std::vector<ChunkEntry> kept;
    kept.reserve(out_.chunks.size());
    for (std::uint32_t t = 0; t < out_.tensors.size(); ++t) {
      TensorEntry& tensor = out_.tensors[t];
      const std::uint32_t begin = static_cast<std::uint32_t>(kept.size());
      for (std::uint32_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c) {
        if (out_.chunks[c].item == kNoIndex && !adopt_item(t, out_.chunks[c])) continue;
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

  static Error no_place(std::string_view name, const std::string& offsets) {
    const std::string chunk = offsets.empty() ? "" : fmt::format(" its chunk at {}", offsets);
    return damaged(fmt::format("'{}':{}{} has no place in storage_data", name, offsets.empty() ? " it" : "", chunk))
        .of_tensor(name);
  }

  Item item_of(std::string_view name, const Value& value) {
    const Value& state = state_of(value, Class::kStorageInfo, name);
    const Value& path = need(state, "relative_path", "_StorageInfo");
    if (!path.is_string()) throw damaged("_StorageInfo: relative_path is no string").of_tensor(name);
    Item item;
    item.file = file_of(path.text, name);
    item.offset = need_int(state, "offset", "_StorageInfo");
    if (find_key(state, "length") != nullptr) item.length = need_int(state, "length", "_StorageInfo");
    if (const Value* transforms = find_key(state, "transform_descriptors")) check_transforms(name, *transforms);
    return item;
  }

  static void check_transforms(std::string_view name, const Value& value) {
    if (value.items.empty()) return;
    const Value& first = *value.items[0];
    throw Error(ErrorCode::kUnsupported, fmt::format("'{}' is stored through the transform {}", name,
                                                     first.is_string() ? first.text : "of an extension"))
        .of_tensor(name)
        .because("only items without stream transforms (zstd and the like) are read");
  }

  std::uint32_t file_of(std::string_view path, std::string_view name) {
    if (!out_.files.empty() && out_.files[last_file_] == path) return last_file_;
    const auto [found, fresh] = files_.emplace(std::string(path), static_cast<std::uint32_t>(out_.files.size()));
    if (fresh) {
      const bool plain = !path.empty() && path != "." && path != ".." &&
                         path.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
      if (!plain) {
        throw damaged(fmt::format("'{}' lies in '{}', which is no plain file name", name, path)).of_tensor(name);
      }
      out_.files.emplace_back(path);
    }
    return last_file_ = found->second;
  }

  Arena& arena_;
  Metadata out_;
  std::array<const Value*, kClasses.size()> seen_{};
  const Value* last_dtype_value_ = nullptr;
  DType last_dtype_{};
  std::uint32_t last_file_ = 0;
  std::unordered_map<std::string_view, std::uint32_t> names_;
  std::unordered_map<std::string, std::uint32_t> files_;
  std::unordered_map<Corner, std::uint32_t, CornerHash> corners_;
};

bool allow(std::string_view module, std::string_view name) {
  if (module == "bytecheckpoint" || module.starts_with("bytecheckpoint.")) {
    throw Error(ErrorCode::kUnsupported, "this is a ByteCheckpoint checkpoint, not one of torch.distributed.checkpoint")
        .because(fmt::format(".metadata names the class {}.{}", module, name))
        .hint("load it with ByteCheckpoint and save it with torch.distributed.checkpoint");
  }
  return pickle::is_known_global(module, name);
}

}  // namespace

Metadata parse_metadata(Arena& arena, std::span<const std::byte> data, const std::string& file) {
  try {
    Arena scratch;
    pickle::LoadOptions options;
    options.file = file;
    options.allow = allow;
    return Parser(arena).run(*pickle::load(scratch, data, options));
  } catch (Error& error) {
    error.in_file(file);
    throw;
  }
}

FileNumbers file_numbers(std::string_view name) {
  constexpr std::string_view kSuffix = ".distcp";
  if (!name.starts_with("__") || !name.ends_with(kSuffix)) return {};
  name = name.substr(2, name.size() - 2 - kSuffix.size());
  FileNumbers numbers;
  const auto [rank_end, rank_error] = std::from_chars(name.data(), name.data() + name.size(), numbers.rank);
  if (rank_error != std::errc{} || numbers.rank < 0 || rank_end == name.data() + name.size() || *rank_end != '_') {
    return {};
  }
  const auto [end, error] = std::from_chars(rank_end + 1, name.data() + name.size(), numbers.number);
  if (error != std::errc{} || end != name.data() + name.size() || numbers.number < 0) return {};
  return numbers;
}

}  // namespace shard::dcp
