#include "formats/dcp/metadata.h"

#include <fmt/format.h>

#include "formats/dcp/block_runs.h"
#include "formats/dcp/metadata_classes.h"
#include "formats/dcp/storage_data.h"
#include "formats/parts/pickle/attributes.h"
#include "formats/parts/pickle/pickle.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/plural.h"

namespace shard::dcp {
namespace {

/// Walks the value tree of one pickle into a Metadata.
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
    for (std::size_t i = 0; i < items.size(); i += 2) {
      const std::string_view name = arena_.copy(pickle::string(*items[i], "name in state_dict_metadata"));
      const bool is_object = classes_.is(*items[i + 1], Class::kBytes);
      const std::size_t index = is_object ? out_.objects.size() : out_.tensors.size();
      targets_.try_emplace(name, Target{static_cast<std::uint32_t>(index), is_object});  // The keys of a dict differ.
      if (is_object) {
        out_.objects.push_back({name, {}, kNoIndex});
      } else {
        try {
          tensor(name, *items[i + 1]);
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
        "cannot be read: their chunk sizes lack dimensions (a Megatron-core defect)");
    if (out_.objects.size() == objects) return;
    out_.defect = Error(ErrorCode::kCorruption, "the sizes of its chunks lack dimensions: it cannot be placed")
                      .of_tensor(out_.objects[objects].name)
                      .of_kind(FindingKind::kShapeMismatch)
                      .because(fmt::format("a defect of Megatron-core, which {} tensors here have",
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

  /// A tuple (dtype, layout, requires_grad, memory format, pin_memory, ...) of five or more, or a dict of those.
  void properties(const Value& value, TensorEntry& entry) {
    classes_.need(value, Class::kProperties);
    if (value.callee()->module() == kMetadataModule)
      out_.maker = "torch>=2.3";  // Before, the class was ShardedTensor's.
    const Value& state = *value.extra()->state;
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
    const std::span<Value*> items = mapping_items(planner);
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (!items[i]->is_string() || items[i + 1]->kind != ValueKind::kTuple) {
        throw pickle::malformed("planner_data", "it does not lead from names to tuples")
            .found(type_name(*items[i + 1]));
      }
      const Target* found = targets_.find(items[i]->text());
      if (found == nullptr) continue;  // A name of a rank that wrote nothing for it.
      const auto [index, is_object] = *found;
      const std::string_view name = is_object ? out_.objects[index].name : out_.tensors[index].name;
      (is_object ? out_.objects[index].path : out_.tensors[index].path) = path_of(name, *items[i + 1]);
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
        const bool in_name = at <= name.size() && name.substr(at).starts_with(key);  // Mostly: then it costs no memory.
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

/// Other makers have `.metadata` of their own classes; they are named rather than called damaged.
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
    throw Error(ErrorCode::kUnsupported, "cannot read a Megatron-core checkpoint of an unknown version")
        .because(fmt::format(".metadata names the class {}.{}", module, name))
        .hint("load it with Megatron-core and save it with torch.distributed.checkpoint");
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
