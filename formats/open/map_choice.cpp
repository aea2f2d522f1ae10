#include "formats/open/map_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "formats/export/model_folder.h"
#include "formats/parts/pickle/attributes.h"
#include "formats/registry.h"
#include "libshard/catalog/selection/selection.h"
#include "libshard/compute/scaled_tensors.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/nearest.h"
#include "libshard/core/short_text.h"
#include "libshard/core/value.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"
#include "libshard/map/documents/builtin_maps.h"
#include "libshard/map/matching/rank_search.h"
#include "libshard/map/passes/mapped_reader.h"

namespace shard {
namespace {

constexpr std::int64_t kMaxBytes = 16 << 20;  ///< Largest document or config.json.
constexpr std::string_view kArguments = "args.";
constexpr std::string_view kParamShapes = "param_shapes";

std::vector<std::pair<std::string, std::string>> parse_numbers(const std::vector<std::string>& set) {
  std::vector<std::pair<std::string, std::string>> numbers;
  for (const std::string& text : set) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' does not set a variable of the map", text))
          .expected("NAME=VALUE, such as heads=32");
    }
    const std::string name = text.substr(0, equals), value = text.substr(equals + 1);
    const auto before = std::ranges::find(numbers, name, [](const auto& each) { return each.first; });
    if (before != numbers.end() && before->second != value) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("the variable '{}' of the map is set twice", name))
          .expected("one value")
          .found(fmt::format("{} and {}", before->second, value));
    }
    numbers.emplace_back(name, value);
  }
  return numbers;
}

/// The object with that name, or null.
const Value* value_of(const Catalog& catalog, std::string_view name) {
  const auto object = std::ranges::find(catalog.objects, name, &Object::name);
  return object == catalog.objects.end() ? nullptr : object->value;
}

/// A number or text of the source's arguments: an object with that name, or an attribute of a Namespace `args`.
std::optional<MapValue> argument_of(const Catalog& catalog, std::string_view name) {
  const Value* found = value_of(catalog, std::string(kArguments) + std::string(name));
  const Value* const all = value_of(catalog, kArguments.substr(0, kArguments.size() - 1));
  if (found == nullptr && all != nullptr && all->state() != nullptr) {
    found = find_key(*all->state(), name);
  }
  if (found == nullptr) return std::nullopt;
  const Value& value = *found;
  if (value.kind == ValueKind::kInt || value.kind == ValueKind::kBool) return value.number;
  if (value.kind == ValueKind::kString) return std::string(value.text());
  return std::nullopt;
}

MapInputs inputs_of(const SourcePlace& place, const MapDocument& document, const MapNumbers& numbers,
                    const std::vector<std::string>& sources) {
  MapInputs inputs;
  inputs.given = parse_numbers(numbers.set);
  const auto is_of_another_map = [&](const auto& number) {
    return !document.has_variable(number.first) && std::ranges::any_of(numbers.maps, [&](const std::string& map) {
      return open_map(place, map).document.has_variable(number.first);
    });
  };
  std::erase_if(inputs.given, is_of_another_map);
  inputs.config_file = find_config(place.store, numbers, sources);
  if (!inputs.config_file.empty()) inputs.config = whole_text(*place.store.open(inputs.config_file), kMaxBytes);
  return inputs;
}

/// The names that DeepSpeed lists beside a module: its parameters by group, in the order of the flat buffers.
/// \throws Error kCorruption  not a list of dicts (before DeepSpeed 0.5.4: a dict), or a name appears twice
std::vector<std::vector<std::string>> names_in_shapes(const Value& shapes) {
  std::vector<std::vector<std::string>> groups;
  HashSet<std::string_view> met;
  const auto add = [&](const Value& group) {
    const std::string what = fmt::format("{}[{}]", kParamShapes, groups.size());
    const ItemPairs shapes_by_name(pickle::mapping(group, what));
    groups.emplace_back();
    for (const auto [key, shape] : shapes_by_name) {
      const std::string_view name = pickle::string(*key, what);
      if (!met.insert(name)) throw pickle::malformed(what, fmt::format("it lists '{}' again", name)).of_tensor(name);
      groups.back().emplace_back(name);
    }
  };
  if (is_mapping(shapes)) {
    add(shapes);
  } else {
    for (const Value* const group : pickle::sequence(shapes, kParamShapes)) add(*group);
  }
  return groups;
}

/// Reads the lists of rank 0. The other ranks' lists have the same names.
std::vector<std::vector<std::string>> read_param_shapes(const SourceStore& store, const OpenSource& source) {
  const std::vector<RankPath> files = source.rank_paths ? source.rank_paths->files : std::vector<RankPath>();
  OpenOptions how;
  how.opaque_globals = source.opaque_globals;
  for (const RankPath& file : files) {
    const Source one{&store, {join_path(source.paths.front(), file.path)}};
    const std::unique_ptr<Reader> reader = file_format_of(*source.format).open(one, how);
    const Value* const root = reader->catalog().root;
    const Value* const shapes = root == nullptr || !is_mapping(*root) ? nullptr : find_key(*root, kParamShapes);
    if (shapes == nullptr) continue;
    try {
      return names_in_shapes(*shapes);
    } catch (Error& error) {
      throw error.in_file(file.path);
    }
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("cannot undo the map's flatten: no file of the source lists {}", kParamShapes))
      .in_file(source.paths.front());
}

/// Checks that the file names and the map define the same mesh.
void check_mesh(const ModelMap& map, const OpenSource& source) {
  if (!source.rank_paths || source.rank_paths->mesh.empty() || source.rank_paths->mesh == map.mesh()) return;
  throw Error(ErrorCode::kInvalidArgument, "cannot undo the map: its mesh does not match the files")
      .in_file(source.paths.front())
      .because("the file names determine the size of each axis")
      .expected(fmt::format("{}", fmt::join(map.mesh(), " x ")))
      .found(fmt::format("{}", fmt::join(source.rank_paths->mesh, " x ")));
}

}  // namespace

std::string find_config(const SourceStore& store, const MapNumbers& numbers, const std::vector<std::string>& sources) {
  if (!numbers.hf_ref.empty()) return config_of_reference(store, numbers.hf_ref);
  for (const std::string& path : sources) {
    const std::string folder = find_model_folder(store, path, path).path;
    if (!folder.empty()) return join_path(folder, kConfigName);
  }
  return {};
}

std::int64_t ranks_of(const OpenSource& source) {
  if (source.rank_paths) return source.rank_paths->ranks;
  const Catalog& catalog = source.catalog();
  const auto is_of_a_rank = [](const Tensor& tensor) { return tensor.rank >= 0; };
  return std::ranges::any_of(catalog.tensors, is_of_a_rank) ? catalog.world_size.value_or(1) : 1;
}

namespace {

std::string read_map_text(const SourceStore& store, const std::string& name) {
  if (const BuiltinMap* const map = find_builtin_map(name)) return std::string(map->text);
  if (store.exists(name)) return whole_text(*store.open(name), kMaxBytes);
  std::vector<std::string_view> names;
  for (const BuiltinMap& map : builtin_maps()) names.push_back(map.name);
  const std::string near = nearest(name, names);
  throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' is neither a built-in map nor a file", name))
      .hint(near.empty() ? "list the built-in ones with 'shardctl map list'" : fmt::format("did you mean '{}'?", near));
}

}  // namespace

const OpenedMap& open_map(const SourcePlace& place, const std::string& name) {
  std::shared_ptr<const OpenedMap>& map = place.maps[name];
  if (map == nullptr) {
    std::string text = read_map_text(place.store, name);
    MapDocument document = parse_map_document(text, name);
    map = std::make_shared<const OpenedMap>(OpenedMap{name, std::move(text), std::move(document)});
  }
  return *map;
}

Error& in_map(const SourcePlace& place, const std::string& map, Error& error) {
  const auto opened = place.maps.find(map);
  const bool is_document = opened != place.maps.end() && opened->second != nullptr && find_builtin_map(map) == nullptr;
  return is_document && error.code() == ErrorCode::kInvalidArgument ? error.in_file(map) : error;
}

std::optional<RankPaths> named_ranks(const SourcePlace& place, const SourceRequest& request) try {
  const MapDocument& document = open_map(place, request.map).document;
  const SourceStore& store = place.store;
  const std::string& folder = request.paths.front();
  if (document.files.empty() || request.paths.size() != 1 || !store.is_folder(folder)) {
    return std::nullopt;
  }
  const auto list = [&](const std::string& below) {
    const std::string path = below.empty() ? folder : join_path(folder, below);
    return store.is_folder(path) ? store.list(path) : std::vector<std::string>();
  };
  const MapVariables known(document, inputs_of(place, document, request.numbers, request.paths));
  std::optional<RankPaths> paths = find_rank_paths(document, known, list);
  const auto has_root_or_writer = [](const MapFiles& files) { return !files.root.empty() || !files.writer.empty(); };
  if (!paths && (document.files.size() > 1 || has_root_or_writer(document.files.front()))) {
    throw Error(ErrorCode::kNotFound, fmt::format("'{}' contains none of the files that the map lists", folder))
        .in_file(folder)
        .expected(document.files.front().path);
  }
  return paths;
} catch (Error& error) {
  throw in_map(place, request.map, error);
}

ModelMap choose_map(const SourcePlace& place, const std::string& name, const MapNumbers& numbers,
                    const OpenSource& source, MapUse use, std::int64_t ranks) try {
  MapDocument document = open_map(place, name).document;
  MapInputs inputs = inputs_of(place, document, numbers, source.paths);
  const auto reads_arguments = [](const MapVariable& variable) {
    return std::ranges::any_of(variable.from, [](const std::string& from) { return from.starts_with(kArguments); });
  };
  if (std::ranges::any_of(document.vars, reads_arguments)) source.reader->load_objects();
  inputs.argument = [&](std::string_view argument) { return argument_of(source.catalog(), argument); };
  inputs.ranks = ranks;
  (use == MapUse::kUndo ? inputs.stored : inputs.logical) = &source.catalog();
  MapVariables variables(document, inputs);
  if (document.flatten && document.flatten->takes_param_shapes) {
    if (use == MapUse::kMake) {
      throw Error(ErrorCode::kUnsupported, "cannot make flat buffers in the order of param_shapes")
          .because("only a source checkpoint has this list")
          .hint("list the names in flatten.order");
    }
    document.flatten->param_shapes = read_param_shapes(place.store, source);
  }
  ModelMap map(std::move(document), std::move(variables));
  if (use == MapUse::kUndo) check_mesh(map, source);
  return map;
} catch (Error& error) {
  throw in_map(place, name, error);
}

void add_map_arithmetic(OpenSource& source, std::span<const MapComputed> computed, MapUse use) {
  if (computed.empty()) return;
  std::vector<ScaledTensor> scaled;
  for (const auto& [tensor, factors] : computed) {
    const bool is_undone = use == MapUse::kUndo;
    scaled.push_back(is_undone && factors.unscale != 0 ? ScaledTensor{tensor, factors.unscale}
                                                       : ScaledTensor{tensor, factors.scale, factors.add, is_undone});
  }
  const auto dtype = use == MapUse::kMake ? std::optional(DType::kFloat32) : std::nullopt;
  source.reader = with_scaled_tensors(std::move(source.reader), scaled, dtype, source.computed);
  source.computed.push_back(&dynamic_cast<const ComputedReader&>(*source.reader));
}

void undo_map(const SourcePlace& place, const SourceRequest& request, const SelectionOptions* selection,
              OpenSource& source, const OnStep& on_step) try {
  const ModelMap map = choose_map(place, request.map, request.numbers, source, MapUse::kUndo, ranks_of(source));
  std::function<bool(std::string_view)> leaves_out;
  if (selection != nullptr && (!selection->include.empty() || !selection->exclude.empty())) {
    leaves_out = [is_chosen = name_filter(*selection)](std::string_view name) { return !is_chosen(name); };
  }
  const Catalog& stored = source.catalog();  // Stays valid, because the new reader owns the old one.
  auto reader = std::make_unique<MappedReader>(std::move(source.reader), map, leaves_out);
  check_scales_follow(stored, reader->catalog());
  if (on_step) {
    on_step(fmt::format("undid map {}: {}, {} unchanged, {} dropped", request.map,
                        plural(std::ssize(reader->catalog().tensors), "tensor"), reader->undone().copied(),
                        reader->undone().dropped()));
  }
  source.is_mapped = true;
  const std::vector<MapComputed> computed = reader->undone().computed();
  source.reader = std::move(reader);
  add_map_arithmetic(source, computed, MapUse::kUndo);
} catch (Error& error) {
  throw in_map(place, request.map, error);
}

}  // namespace shard
