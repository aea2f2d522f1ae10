#include "formats/dcp/metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "formats/parts/pickle/attributes.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/box.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/short_text.h"
#include "libshard/core/value.h"

namespace shard::dcp {

namespace {

// The classes in `.metadata`, under each module in which some torch version defines them.

enum class Class { kMetadata, kTensor, kBytes, kChunk, kProperties, kIndex, kStorageInfo };

inline constexpr std::size_t kClassCount = 7;
inline constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
inline constexpr std::string_view kOldMetadataModule = "torch.distributed._shard.checkpoint.metadata";  ///< torch 1.13.
bool is_megatron_metadata(std::string_view module, std::string_view name);

/// Identifies the classes of one pickle. Threads: one. Cost: usually one comparison of pointers.
class MetadataClasses {
 public:
  bool is(const Value& value, Class id);
  /// \throws Error kCorruption (bad_pickle)  `object` is not of that class, or has no attributes.
  void need(const Value& object, Class id);

 private:
  std::array<const Value*, kClassCount> seen_{};  ///< The last global that named each class; usually there is only one.
};

struct ClassName {
  Class id;
  std::string_view name;
  std::array<std::string_view, 3> modules;
};

constexpr std::string_view kNew = kMetadataModule, kOld = kOldMetadataModule;
constexpr std::array<ClassName, kClassCount> kClasses{{
    {Class::kMetadata, "Metadata", {kNew, kOld, {}}},
    {Class::kTensor, "TensorStorageMetadata", {kNew, kOld, {}}},
    {Class::kBytes, "BytesStorageMetadata", {kNew, kOld, {}}},
    {Class::kChunk, "ChunkStorageMetadata", {kNew, kOld, {}}},
    {Class::kProperties, "TensorProperties", {kNew, kOld, "torch.distributed._shard.sharded_tensor.metadata"}},
    {Class::kIndex, "MetadataIndex", {kNew, kOld, {}}},
    {Class::kStorageInfo,
     "_StorageInfo",
     {"torch.distributed.checkpoint.filesystem", "torch.distributed._shard.checkpoint.filesystem",
      "torch.distributed.checkpoint._fsspec_filesystem"}},
}};

const ClassName& class_name(Class id) { return kClasses[static_cast<std::size_t>(id)]; }

bool names(const Value& callee, Class id) {
  if (callee.kind != ValueKind::kGlobal) return false;
  const ClassName& wanted = class_name(id);
  if (callee.text() != wanted.name)
    return id == Class::kMetadata && is_megatron_metadata(callee.module(), callee.text());
  const auto is_module = [&](std::string_view module) { return !module.empty() && module == callee.module(); };
  return std::ranges::any_of(wanted.modules, is_module);
}

/// True for the class that Megatron-Core 0.15 derives from torch's Metadata, with the attribute `mcore_data`. Forks
/// define it in modules of their own.
bool is_megatron_metadata(std::string_view module, std::string_view name) {
  return name == "MCoreMetadata" && module.starts_with("megatron.");
}

bool MetadataClasses::is(const Value& value, Class id) {
  if (value.kind != ValueKind::kCall || value.callee() == nullptr) return false;
  const Value*& seen = seen_[static_cast<std::size_t>(id)];
  if (value.callee() == seen) return true;
  if (!names(*value.callee(), id)) return false;
  seen = value.callee();
  return true;
}

void MetadataClasses::need(const Value& object, Class id) {
  const ClassName& wanted = class_name(id);
  if (!is(object, id)) {
    throw pickle::malformed(wanted.name, fmt::format("found a value of type {} instead", type_name(object)));
  }
  if (object.state() == nullptr) {
    throw pickle::malformed(wanted.name, "it has no attributes");
  }
}

// `storage_data` of `.metadata`: the item of each chunk and object.

/// The value that a name of the state dict leads to.
struct Target {
  std::uint32_t index;  ///< Into Metadata::objects or Metadata::tensors.
  bool is_object;
};

using Targets = HashMap<std::string_view, Target>;

Error bad_places(const std::string& why) { return pickle::malformed("storage_data", why); }

Error no_place(std::string_view name, const std::string& offsets) {
  const std::string chunk = offsets.empty() ? "" : fmt::format(" its chunk at {}", offsets);
  return bad_places(fmt::format("'{}':{}{} has no location", name, offsets.empty() ? " it" : "", chunk))
      .of_tensor(name);
}

/// True if the item is compressed with zstd. \throws Error kUnsupported  the item has any other transform
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
      .because("stream.zstd/1 is the only supported stream transform, and only without others");
}

class StorageDataReader {
 public:
  StorageDataReader(Arena& arena, MetadataClasses& classes, const Targets& targets, Metadata& metadata)
      : arena_(arena), classes_(classes), targets_(targets), out_(metadata) {}

  void run(const Value& storage_data) {
    const std::span<Value*> items = pickle::mapping(storage_data, "storage_data");
    out_.items.reserve(items.size() / 2);
    for (const auto [index, place] : ItemPairs(items)) read(*index, *place);
    resolve_chunks();
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
      if (slot != kNoIndex) throw bad_places(fmt::format("it has two locations for one chunk of '{}'", name));
      slot = static_cast<std::uint32_t>(out_.items.size());
      out_.items.push_back(item_of(name, place));
    } catch (Error& error) {
      throw error.of_tensor(name);
    }
  }

  /// The item number, not set yet, of the chunk or object that a MetadataIndex names.
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
      throw bad_places(fmt::format("it has a location for a chunk of '{}' at {}, but no chunk starts there", name,
                                   to_string(offsets.span())));
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

  /// The chunk of a tensor that starts at `offsets`, or null. The first nonempty one of several.
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

  void resolve_chunks() {
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

  /// \returns false for an empty chunk that can be skipped.
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
        throw bad_places(fmt::format("'{}' is in '{}', which is not a plain file name", name, shown));
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

/// Gives every chunk and object of `metadata` its item. Empty chunks that need no item are skipped.
///
/// The keys of storage_data name a tensor's chunks by their offsets. Chunks with equal offsets therefore share one
/// location: equal boxes are replicas; for an empty and a non-empty box, the location belongs to the non-empty one.
/// \throws Error kCorruption, kUnsupported  see parse_metadata. Cost: a look-up per item. `arena` owns the sizes.
void read_storage_data(Arena& arena, MetadataClasses& classes, const Value& storage_data, const Targets& targets,
                       Metadata& metadata) {
  StorageDataReader(arena, classes, targets, metadata).run(storage_data);
}

/// Converts the value tree of one pickle to a Metadata.
class Parser {
 public:
  Parser(Arena& arena, const MetadataOptions& options) : arena_(arena), options_(options) {}

  Metadata run(const Value& root) {
    classes_.need(root, Class::kMetadata);
    out_.maker = root.callee()->module() == kOldMetadataModule ? "torch<=1.13" : "torch>=2.0";
    state_dict(pickle::need(root, "state_dict_metadata"));
    const Value* planner = pickle::attribute(root, "planner_data");
    if (planner != nullptr && planner->kind != ValueKind::kNone) paths(*planner);
    read_storage_data(arena_, classes_, pickle::need(root, "storage_data"), targets_, out_);
    restore_block_runs(arena_, pickle::attribute(root, "mcore_data"), options_.names_megatron, out_);
    set_short_apart();
    if (const Value* note = pickle::attribute(root, kLostAttribute))
      out_.lost_note = pickle::string(*note, kLostAttribute);
    return std::move(out_);
  }

 private:
  void state_dict(const Value& value) {
    const std::span<Value*> items = pickle::mapping(value, "state_dict_metadata");
    targets_.reserve(items.size() / 2);
    for (const auto [key, entry] : ItemPairs(items)) {
      const std::string_view name = arena_.copy(pickle::string(*key, "name in state_dict_metadata"));
      const bool is_object = classes_.is(*entry, Class::kBytes);
      const std::size_t index = is_object ? out_.objects.size() : out_.tensors.size();
      // The keys of a dict are distinct.
      targets_.try_emplace(name, Target{static_cast<std::uint32_t>(index), is_object});
      if (is_object) {
        out_.objects.push_back({name, {}, kNoIndex});
      } else {
        try {
          tensor(name, *entry);
        } catch (const Error& error) {
          throw pickle::named(error, name);
        }
      }
    }
  }

  void set_short_apart() {
    const std::size_t objects = out_.objects.size();
    set_apart(
        out_, [this](std::string_view name) { return short_.contains(name); },
        "cannot be read: their chunk sizes lack dimensions (a Megatron-Core defect)");
    if (out_.objects.size() == objects) return;
    out_.defect = Error(ErrorCode::kCorruption, "the sizes of its chunks lack dimensions")
                      .of_tensor(out_.objects[objects].name)
                      .of_kind(FindingKind::kShapeMismatch)
                      .because(fmt::format("a defect of Megatron-Core, which {} tensors here have",
                                           out_.objects.size() - objects));
  }

  void tensor(std::string_view name, const Value& value) {
    classes_.need(value, Class::kTensor);
    TensorEntry entry;
    entry.name = name;
    properties(pickle::need(value, "properties"), entry);
    entry.size = pickle::dims(arena_, pickle::need(value, "size"), "size");
    const std::span<Value* const> chunks = pickle::sequence(pickle::need(value, "chunks"), "list of chunks");
    entry.first_chunk = static_cast<std::uint32_t>(out_.chunks.size());
    entry.chunk_count = static_cast<std::uint32_t>(chunks.size());
    arena_.charge(Charge::kChunks, std::ssize(chunks));
    for (const Value* chunk : chunks) out_.chunks.push_back(chunk_of(entry, *chunk));
    out_.tensors.push_back(entry);
  }

  ChunkEntry chunk_of(const TensorEntry& tensor, const Value& value) {
    classes_.need(value, Class::kChunk);
    ChunkEntry chunk;
    chunk.offsets = pickle::dims(arena_, pickle::need(value, "offsets"), "offsets of a chunk");
    chunk.sizes = pickle::dims(arena_, pickle::need(value, "sizes"), "sizes of a chunk");
    const int dimensions = tensor.size.size();
    if (options_.sets_short_apart && chunk.offsets.size() == dimensions && chunk.sizes.size() < dimensions) {
      short_.insert(tensor.name);
    } else if (chunk.offsets.size() != dimensions || chunk.sizes.size() != dimensions) {
      throw Error(ErrorCode::kCorruption,
                  fmt::format("tensor '{}' has {} dimensions, but one of its chunks has a different number",
                              tensor.name, tensor.size.size()))
          .of_tensor(tensor.name)
          .expected(to_string(tensor.size.span()))
          .found(fmt::format("offsets {}, sizes {}", to_string(chunk.offsets.span()), to_string(chunk.sizes.span())))
          .of_kind(FindingKind::kShapeMismatch);
    }
    return chunk;
  }

  /// A tuple (dtype, layout, requires_grad, memory format, pin_memory, ...) of five or more values, or such a dict.
  void properties(const Value& value, TensorEntry& entry) {
    classes_.need(value, Class::kProperties);
    if (value.callee()->module() == kMetadataModule)
      out_.maker = "torch>=2.3";  // In earlier versions the class belonged to ShardedTensor.
    const Value& state = *value.state();
    const bool is_tuple = state.kind == ValueKind::kTuple && state.items().size() >= 5;
    const Value& dtype = is_tuple ? *state.items()[0] : pickle::need(value, "dtype");
    const Value* layout = is_tuple ? state.items()[1] : pickle::attribute(value, "layout");
    const Value* grad = is_tuple ? state.items()[2] : pickle::attribute(value, "requires_grad");
    entry.dtype = dtype_of(dtype);
    if (layout != nullptr) check_layout(entry.name, *layout);
    entry.requires_grad = grad != nullptr && pickle::boolean(*grad, "requires_grad");
  }

  DType dtype_of(const Value& value) {
    if (&value == last_dtype_value_) return last_dtype_;
    last_dtype_ = pickle::dtype(value, "TensorProperties");
    last_dtype_value_ = &value;
    return last_dtype_;
  }

  static void check_layout(std::string_view name, const Value& value) {
    const bool named = value.is_call_of("torch.serialization", "_get_layout") && value.items().size() == 1 &&
                       value.items()[0]->is_string();
    if (!named) throw pickle::malformed("TensorProperties", "its layout is not one of torch's");
    if (value.items()[0]->text() != "torch.strided") {
      throw Error(ErrorCode::kUnsupported, fmt::format("tensor '{}' has the layout {}, only torch.strided is read",
                                                       name, value.items()[0]->text()))
          .of_tensor(name);
    }
  }

  void paths(const Value& planner) {
    if (!is_mapping(planner)) {
      out_.warnings.push_back(
          fmt::format(".metadata: ignored planner_data of type {}; names are not nested", type_name(planner)));
      return;
    }
    out_.has_paths = true;
    for (const auto [key, path] : ItemPairs(planner)) {
      if (!key->is_string() || path->kind != ValueKind::kTuple) {
        throw pickle::malformed("planner_data", "it does not lead from names to tuples").found(type_name(*path));
      }
      const Target* found = targets_.find(key->text());
      if (found == nullptr) continue;  // The name belongs to a rank that wrote nothing for it.
      const auto [index, is_object] = *found;
      const std::string_view name = is_object ? out_.objects[index].name : out_.tensors[index].name;
      (is_object ? out_.objects[index].path : out_.tensors[index].path) = path_of(name, *path);
    }
  }

  static Error bad_path(std::string_view name, std::string_view why) {
    return pickle::malformed("planner_data", fmt::format("'{}' {}", name, why)).of_tensor(name);
  }

  Path path_of(std::string_view name, const Value& tuple) {
    const std::span<Value*> parts = tuple.items();
    if (parts.empty()) throw bad_path(name, "has an empty path");
    if (parts.size() > Path::kMaxParts / 2) throw bad_path(name, "has a path of too many parts");
    const std::span<PathPart> path = arena_.array<PathPart>(parts.size());
    std::size_t at = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i]->is_string()) {
        const std::string_view key = parts[i]->text();
        // Usually the key is part of the name, and then it takes no memory.
        const bool in_name = at <= name.size() && name.substr(at).starts_with(key);
        path[i] = PathPart::of_key(in_name ? name.substr(at, key.size()) : arena_.copy(key));
        at += key.size() + 1;
      } else if (parts[i]->kind == ValueKind::kInt) {
        path[i] = PathPart::of_index(parts[i]->number);
        at += fmt::formatted_size("{}", parts[i]->number) + 1;
      } else {
        throw bad_path(name, "has a path with a part that is neither key nor index").found(type_name(*parts[i]));
      }
    }
    return compact_path(Path(path), name);
  }

  Arena& arena_;
  const MetadataOptions& options_;
  HashSet<std::string_view> short_;  ///< Tensors with chunks whose sizes lack dimensions.
  MetadataClasses classes_;
  Metadata out_;
  Targets targets_;
  const Value* last_dtype_value_ = nullptr;
  DType last_dtype_{};
};

/// Other frameworks have a `.metadata` of their own classes. The error names the framework instead of reporting damage.
void refuse_foreign_class(std::string_view module, std::string_view name) {
  const auto is_of = [&](std::string_view package) {
    return module.starts_with(package) && (module.size() == package.size() || module[package.size()] == '.');
  };
  if (is_of("bytecheckpoint")) {
    throw Error(ErrorCode::kUnsupported,
                "cannot read a ByteCheckpoint checkpoint: it is not one of torch.distributed.checkpoint")
        .because(fmt::format(".metadata names the class {}.{}", module, name))
        .hint("load it with ByteCheckpoint and save it with torch.distributed.checkpoint");
  }
  if (is_of("megatron") && !is_megatron_metadata(module, name)) {
    throw Error(ErrorCode::kUnsupported, "cannot read a Megatron-Core checkpoint of an unknown version")
        .because(fmt::format(".metadata names the class {}.{}", module, name))
        .hint("load it with Megatron-Core and save it with torch.distributed.checkpoint");
  }
}

}  // namespace

void set_apart(Metadata& metadata, const std::function<bool(std::string_view name)>& is_unreadable,
               std::string_view why) {
  const std::size_t objects = metadata.objects.size();
  std::erase_if(metadata.tensors, [&](const TensorEntry& tensor) {
    const bool is_apart = tensor.chunk_count > 0 && is_unreadable(tensor.name);
    if (is_apart) {
      const std::uint32_t item = metadata.chunks[tensor.first_chunk].item;
      metadata.objects.push_back({tensor.name, tensor.path, item, -1, true});
    }
    return is_apart;
  });
  if (metadata.objects.size() == objects) return;
  metadata.warnings.push_back(fmt::format(
      "{} {}, '{}' first", plural(std::ssize(metadata.objects) - static_cast<std::ptrdiff_t>(objects), "tensor"), why,
      metadata.objects[objects].name));
}

Metadata parse_metadata(Arena& arena, std::span<const std::byte> data, const std::string& file,
                        const MetadataOptions& options) {
  try {
    Arena scratch(arena.budget());
    pickle::LoadOptions load;
    load.file = file;
    load.opaque_unknown = options.opaque_globals;
    load.allow = [](std::string_view module, std::string_view name) {
      refuse_foreign_class(module, name);
      return is_megatron_metadata(module, name) || pickle::is_known_global(module, name);
    };
    return Parser(arena, options).run(*pickle::load(scratch, data, load));
  } catch (Error& error) {
    error.in_file(file);
    throw;
  }
}

}  // namespace shard::dcp
