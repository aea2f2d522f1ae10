#include "formats/dcp/metadata.h"

#include <fmt/format.h>

#include <optional>

#include "formats/dcp/fields.h"
#include "formats/dcp/places.h"
#include "formats/parts/pickle/pickle.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"

namespace shard::dcp {
namespace {

/// Walks the value tree of one pickle into a Metadata.
class Parser {
 public:
  explicit Parser(Arena& arena) : fields_(arena) {}

  Metadata run(const Value& root) {
    const Value& state = fields_.state_of(root, Class::kMetadata, "the pickle");
    out_.maker = root.callee->module() == kOldMetadataModule ? "torch<=1.13" : "torch>=2.0";
    state_dict(Fields::need(state, "state_dict_metadata", "Metadata"));
    if (const Value* planner = find_key(state, "planner_data"); planner && planner->kind != ValueKind::kNone) {
      paths(*planner);
    }
    read_places(fields_, Fields::need(state, "storage_data", "Metadata"), targets_, out_);
    return std::move(out_);
  }

 private:
  void state_dict(const Value& value) {
    const std::span<Value*> items = Fields::need_mapping(value, "state_dict_metadata");
    targets_.reserve(items.size() / 2);
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (!items[i]->is_string()) {
        throw damaged("state_dict_metadata: a name is no string").found(type_name(*items[i]));
      }
      const std::string_view name = fields_.copy(items[i]->text);
      const bool is_object = fields_.is(*items[i + 1], Class::kBytes);
      const std::size_t index = is_object ? out_.objects.size() : out_.tensors.size();
      targets_.emplace(name, Target{static_cast<std::uint32_t>(index), is_object});  // The keys of a dict differ.
      if (is_object) {
        out_.objects.push_back({name, {}, kNoIndex});
      } else {
        tensor(name, *items[i + 1]);
      }
    }
  }

  void tensor(std::string_view name, const Value& value) {
    const Value& state = fields_.state_of(value, Class::kTensor, name);
    TensorEntry entry;
    entry.name = name;
    properties(Fields::need(state, "properties", name), entry);
    entry.size = fields_.dims(Fields::need(state, "size", name), name, "size");
    const Value& chunks = Fields::need(state, "chunks", name);
    if (chunks.kind != ValueKind::kList && chunks.kind != ValueKind::kTuple) {
      throw damaged(fmt::format("tensor '{}': chunks is no list", name)).of_tensor(name).found(type_name(chunks));
    }
    entry.first_chunk = static_cast<std::uint32_t>(out_.chunks.size());
    entry.chunk_count = static_cast<std::uint32_t>(chunks.items.size());
    for (const Value* chunk : chunks.items) out_.chunks.push_back(chunk_of(entry, *chunk));
    out_.tensors.push_back(entry);
  }

  ChunkEntry chunk_of(const TensorEntry& tensor, const Value& value) {
    const Value& state = fields_.state_of(value, Class::kChunk, tensor.name);
    ChunkEntry chunk;
    chunk.offsets = fields_.dims(Fields::need(state, "offsets", tensor.name), tensor.name, "a chunk's offsets");
    chunk.sizes = fields_.dims(Fields::need(state, "sizes", tensor.name), tensor.name, "a chunk's sizes");
    if (chunk.offsets.size() != tensor.size.size() || chunk.sizes.size() != tensor.size.size()) {
      throw Error(ErrorCode::kCorruption, fmt::format("tensor '{}' has {} dimensions, a chunk of it another number",
                                                      tensor.name, tensor.size.size()))
          .of_tensor(tensor.name)
          .expected(to_string(tensor.size.span()))
          .found(fmt::format("offsets {}, sizes {}", to_string(chunk.offsets.span()), to_string(chunk.sizes.span())))
          .of_kind(FindingKind::kShapeMismatch);
    }
    return chunk;
  }

  /// A tuple (dtype, layout, requires_grad, memory format, pin_memory, ...) of five or more, or a dict of those.
  void properties(const Value& value, TensorEntry& entry) {
    const Value& state = fields_.raw_state_of(value, Class::kProperties, entry.name);
    if (value.callee->module() == kMetadataModule) out_.maker = "torch>=2.3";  // Before, the class was ShardedTensor's.
    const Value *dtype = nullptr, *layout = nullptr, *grad = nullptr;
    if (state.kind == ValueKind::kTuple && state.items.size() >= 5) {
      dtype = state.items[0], layout = state.items[1], grad = state.items[2];
    } else {
      const Value& named = fields_.state_of(value, Class::kProperties, entry.name);
      dtype = &Fields::need(named, "dtype", entry.name);
      layout = find_key(named, "layout"), grad = find_key(named, "requires_grad");
    }
    entry.dtype = dtype_of(entry.name, *dtype);
    if (layout != nullptr) check_layout(entry.name, *layout);
    if (grad != nullptr && grad->kind != ValueKind::kBool) {
      throw damaged(fmt::format("tensor '{}': requires_grad is no bool", entry.name))
          .of_tensor(entry.name)
          .found(type_name(*grad));
    }
    entry.requires_grad = grad != nullptr && grad->boolean;
  }

  DType dtype_of(std::string_view name, const Value& value) {
    if (&value == last_dtype_value_) return last_dtype_;
    std::optional<DType> dtype;
    if (value.kind == ValueKind::kGlobal && value.module() == "torch") dtype = dtype_of_name(value.text);
    if (!dtype) {
      throw damaged(fmt::format("tensor '{}': its dtype is none of torch's", name))
          .of_tensor(name)
          .found(value.kind == ValueKind::kGlobal ? fmt::format("{}.{}", value.module(), value.text)
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
    out_.has_paths = true;
    const std::span<Value*> items = mapping_items(planner);
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (!items[i]->is_string() || items[i + 1]->kind != ValueKind::kTuple) {
        throw damaged("planner_data does not lead from names to tuples").found(type_name(*items[i + 1]));
      }
      const auto found = targets_.find(items[i]->text);
      if (found == targets_.end()) continue;  // A name of a rank that wrote nothing for it.
      const auto [index, is_object] = found->second;
      Path& path = is_object ? out_.objects[index].path : out_.tensors[index].path;
      path = path_of(found->first, *items[i + 1]);
    }
  }

  Path path_of(std::string_view name, const Value& tuple) {
    const std::span<Value*> parts = tuple.items;
    if (parts.empty()) throw damaged(fmt::format("planner_data: '{}' has an empty path", name)).of_tensor(name);
    const std::span<PathPart> path = fields_.array<PathPart>(parts.size());
    std::size_t at = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i]->is_string()) {
        const std::string_view key = parts[i]->text;
        const bool in_name = at <= name.size() && name.substr(at).starts_with(key);  // Mostly: then it costs no memory.
        path[i].key = in_name ? name.substr(at, key.size()) : fields_.copy(key);
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

  Fields fields_;
  Metadata out_;
  Targets targets_;
  const Value* last_dtype_value_ = nullptr;
  DType last_dtype_{};
};

/// Other makers have `.metadata` of their own classes; they are named rather than called damaged.
void refuse_foreign_class(std::string_view module, std::string_view name) {
  const auto is_of = [&](std::string_view package) {
    return module.starts_with(package) && (module.size() == package.size() || module[package.size()] == '.');
  };
  if (is_of("bytecheckpoint")) {
    throw Error(ErrorCode::kUnsupported, "this is a ByteCheckpoint checkpoint, not one of torch.distributed.checkpoint")
        .because(fmt::format(".metadata names the class {}.{}", module, name))
        .hint("load it with ByteCheckpoint and save it with torch.distributed.checkpoint");
  }
  if (is_of("megatron")) {
    throw Error(ErrorCode::kUnsupported, "this is a Megatron-core checkpoint, whose tensors may be stored reshaped")
        .because(fmt::format(".metadata names the class {}.{}, which says how", module, name))
        .hint("load it with Megatron-core and save it with torch.distributed.checkpoint");
  }
}

}  // namespace

Metadata parse_metadata(Arena& arena, std::span<const std::byte> data, const std::string& file, bool opaque_globals) {
  try {
    Arena scratch;
    pickle::LoadOptions options;
    options.file = file;
    options.opaque_unknown = opaque_globals;
    options.allow = [](std::string_view module, std::string_view name) {
      refuse_foreign_class(module, name);
      return pickle::is_known_global(module, name);
    };
    return Parser(arena).run(*pickle::load(scratch, data, options));
  } catch (Error& error) {
    error.in_file(file);
    throw;
  }
}

}  // namespace shard::dcp
