#include <algorithm>

#include "apps/shardctl/render/inspect.h"
#include "apps/shardctl/render/json_parts.h"
#include "apps/shardctl/source/inspect_numbers.h"
#include "apps/shardctl/text/sharding_text.h"
#include "apps/shardctl/text/value_text.h"
#include "libshard/catalog/chunk_place.h"

namespace shard::app {
namespace {

/// Facts about all entries that each entry of a tensor or an object needs.
struct Context {
  Aliases aliases;
  std::vector<std::string_view> repeated;
  Meshes meshes;
};

/// Writes the path, unless the path is the name as a single key and no other entry has this name.
void write_path(JsonWriter& json, std::string_view name, Path path, const Context& context) {
  if (path.empty() && !std::ranges::binary_search(context.repeated, name)) return;
  json.key("path"), json.begin_array();
  if (path.empty()) json.string(name);
  for (const PathPart& part : path) {
    if (part.is_index) {
      json.number(part.index);
    } else {
      json.string(part.key());
    }
  }
  json.end_array();
}

void write_chunk(JsonWriter& json, const Catalog& catalog, const Chunk& chunk) {
  const StoredTensor& stored = catalog.stored[chunk.stored];
  json.begin_object();
  json.key("offsets"), json.numbers(chunk.offsets);
  json.key("sizes"), json.numbers(chunk.sizes);
  json.key("rank"), stored.rank >= 0 ? json.number(stored.rank) : json.null();
  json.key("file"), json.string(catalog.files[catalog.storages[stored.storage].file].path);
  const ChunkPlace place = place_of(catalog, chunk);
  json.key("byte_offset"), place.known ? json.number(place.offset_bytes) : json.null();
  json.key("byte_length"), place.known ? json.number(place.span_bytes) : json.null();
  json.key("strides"), place.known ? json.numbers(chunk.strides) : json.null();
  json.end_object();
}

void write_placements(JsonWriter& json, const Catalog& catalog, const Tensor& tensor, const Context& context) {
  json.key("placements");
  if (tensor.sharding == kNoIndex) return json.null();
  json.list(catalog.shardings[tensor.sharding].placements,
            [&](const Placement& placement) { json.string(to_string(placement)); });
  json.key("mesh"), json.number(context.meshes.of_sharding[tensor.sharding]);
}

/// Lists the meshes. Tensors refer to them by index.
void write_meshes(JsonWriter& json, const Meshes& meshes) {
  json.key("meshes"), json.object_lines(2, meshes.list, [&](const Sharding* sharding) {
    json.key("axes"), json.objects(sharding->mesh, [&](const MeshAxis& axis) {
      json.key("name"), json.string_or_null(axis.name);
      json.key("size"), json.number(axis.size);
    });
    json.key("ranks"), json.numbers(mesh_ranks(*sharding));
  });
}

void write_tensor(JsonWriter& json, const Catalog& catalog, const SelectedTensor& selected, const Context& context) {
  const Tensor& tensor = catalog.tensors[selected.source];
  json.key("name"), json.string(selected.name);
  write_path(json, selected.name, selected.path, context);
  json.key("dtype"), json.string(dtype_name(selected.dtype));
  json.key("shape"), json.numbers(tensor.shape);
  json.key("bytes"), json.number(packed_bytes(element_count(tensor.shape), selected.dtype));
  write_placements(json, catalog, tensor, context);
  const auto first = context.aliases.first_of(selected);
  json.key("alias_of"), first ? json.string(*first) : json.null();
  if (tensor.rank >= 0) json.key("rank"), json.number(tensor.rank);
  json.key("chunks"), json.list(catalog.chunks_of(tensor), [&](const Chunk& chunk) {
    if (tensor.chunk_count > 1) json.line(4);
    write_chunk(json, catalog, chunk);
  });
}

void write_object(JsonWriter& json, const Catalog& catalog, const SelectedObject& selected, const Context& context) {
  const Object& object = catalog.objects[selected.source];
  json.key("name"), json.string(selected.name);
  write_path(json, selected.name, selected.path, context);
  json.key("type"), json.string(value_type(object.value));
  json.key("value"), write_value(json, object.value);
  if (!is_scalar(object.value)) json.key("summary"), json.string(value_text(catalog, object.value, kObjectPreview));
  if (object.rank >= 0) json.key("rank"), json.number(object.rank);
}

void write_head(JsonWriter& json, const OpenSource& source, const Selection& selection) {
  const Catalog& catalog = source.catalog();
  const Totals sum = totals(catalog, selection);
  json.key("schema"), json.string("shardctl.inspect/1");
  json.key("source"), json.string(source.label);
  json.key("format"), json.string(catalog.format);
  json.key("format_version"), json.string_or_null(catalog.format_version);
  json.key("world_size"), catalog.world_size ? json.number(*catalog.world_size) : json.null();
  json.line(1);
  json.key("tensor_count"), json.number(selection.tensors.size());
  json.key("object_count"), json.number(selection.objects.size());
  json.key("logical_bytes"), json.number(sum.logical_bytes);
  json.key("stored_bytes"), json.number(sum.stored_bytes);
  json.key("file_count"), json.number(catalog.files.size());
  json.line(1);
  const auto* const ranks = dynamic_cast<const RankGroupSource*>(source.reader.get());
  write_files(json, catalog.files,
              ranks == nullptr ? std::span<const std::optional<RankGroup>>() : ranks->rank_groups());
  const std::vector<QuantizedCount> counts = quantized_counts(catalog);
  if (counts.empty()) return;
  json.line(1);
  json.key("quantized"), json.objects(counts, [&](const QuantizedCount& count) {
    json.key("form"), json.string(quantized_form_name(count.form));
    json.key("modules"), json.number(count.modules);
  });
}

}  // namespace

void render_json(JsonWriter& json, const OpenSource& source, const Selection& selection) {
  const Catalog& catalog = source.catalog();
  const Context context{Aliases(catalog, selection), repeated_names(selection), Meshes(catalog)};
  json.begin_object();
  json.line(1);
  write_head(json, source, selection);
  json.line(1);
  write_meshes(json, context.meshes);
  json.line(1);
  json.key("tensors"), json.object_lines(2, selection.tensors, [&](const SelectedTensor& tensor) {
    write_tensor(json, catalog, tensor, context);
  });
  json.line(1);
  json.key("objects"), json.object_lines(2, selection.objects, [&](const SelectedObject& object) {
    write_object(json, catalog, object, context);
  });
  json.line(1);
  json.key("metadata"), json.begin_object();
  for (const auto& [name, value] : catalog.metadata) {
    json.member_name(name);
    json.string(value);
  }
  json.end_object();
  json.line(1);
  write_texts(json, "warnings", catalog.warnings);
  json.end_object();
  json.end_line();
}

}  // namespace shard::app
