#include <fmt/format.h>

#include <algorithm>

#include "apps/shardctl/command_line.h"
#include "apps/shardctl/element_text.h"
#include "apps/shardctl/json_writer.h"
#include "apps/shardctl/ranks.h"
#include "apps/shardctl/render_cat.h"
#include "apps/shardctl/slice.h"
#include "apps/shardctl/source.h"
#include "apps/shardctl/value_text.h"
#include "apps/shardctl/verbs.h"
#include "libshard/core/error.h"
#include "libshard/core/nearest.h"
#include "libshard/io/paths.h"

namespace shard::app {
namespace {

/// The entries of that name; of tensors and objects alike sorted by name.
template <class Entries>
std::span<const typename Entries::value_type> named(const Entries& entries, std::string_view name) {
  const auto found = std::ranges::equal_range(entries, name, {}, [](const auto& entry) { return entry.name; });
  return {found.begin(), found.end()};
}

/// The line that shows the value of `rank`, if it has a file that can be read alone; else empty.
std::string line_of_rank(const Options& options, const OpenSource& source, int rank) {
  const Catalog& catalog = source.catalog();
  const auto file = std::ranges::find(catalog.files, rank, &File::rank);
  if (catalog.format != "torch-ranks" || file == catalog.files.end()) return {};
  const auto is_it = [&](const std::string& path) { return base_name(path) == file->path; };
  const auto named = std::ranges::find_if(options.sources, is_it);
  const std::string path = named != options.sources.end() ? *named : join_path(options.sources.front(), file->path);
  return fmt::format("shardctl cat {} {} --from torch", shell_quoted(path), shell_quoted(options.name));
}

/// One name, several entries: which one is meant cannot be said.
template <class Entry, class OfCatalog>
const Entry& only_one(std::span<const Entry> entries, const OfCatalog& of_catalog, const Options& options,
                      const OpenSource& source) {
  if (entries.size() == 1) return entries.front();
  const std::string name(entries.front().name);
  const int rank = of_catalog[entries.front().source].rank;
  if (rank >= 0) {
    throw Error(ErrorCode::kCorruption, fmt::format("'{}' is not the same on all ranks", name))
        .of_tensor(name)
        .because(fmt::format("{} ranks hold values of their own", entries.size()))
        .hint(line_of_rank(options, source, rank));
  }
  throw Error(ErrorCode::kUnsupported, fmt::format("{} paths have the name '{}'", entries.size(), name))
      .of_tensor(name);
}

bool starts_below(std::string_view entry, std::string_view name) {
  return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '.';
}

Error absent_name(const Selection& selection, std::string_view asked, std::string_view source) {
  Error error(ErrorCode::kNotFound, fmt::format("{} has no tensor and no object '{}'", source, asked));
  error.of_tensor(asked);
  std::vector<std::string_view> names;
  for (const SelectedTensor& tensor : selection.tensors) names.push_back(tensor.name);
  for (const SelectedObject& object : selection.objects) names.push_back(object.name);
  const auto below = std::ranges::find_if(names, [&](std::string_view name) { return starts_below(name, asked); });
  if (below != names.end()) return error.hint(fmt::format("that is where names begin; one is '{}'", *below));
  const std::string near = names.size() > kMaxSuggestNames ? std::string() : nearest(asked, names);
  return near.empty() ? error.hint("'shardctl inspect' lists the names")
                      : error.hint(fmt::format("did you mean '{}'?", near));
}

// ---- Objects.

void print_object_json(const Session& session, const Catalog& catalog, std::string_view name, const Value* value) {
  TextSink sink(session.out);
  JsonWriter json(sink);
  json.begin_object();
  json.key("schema"), json.string("shardctl.cat/1");
  json.key("name"), json.string(name);
  json.key("type"), json.string(value_type(value));
  json.key("value"), write_value(json, value);
  if (!is_scalar(value)) json.key("summary"), json.string(value_text(catalog, value, kWholeValue));
  json.end_object();
  sink.add('\n');
}

bool is_text(const Value* value) { return value != nullptr && value->kind == ValueKind::kString; }

void print_object(const Session& session, const Options& options, const Catalog& catalog,
                  const SelectedObject& object) {
  const Value* value = catalog.objects[object.source].value;
  if (options.json) return print_object_json(session, catalog, object.name, value);
  if (options.cat_format == "npy" || options.cat_format == "raw") {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' is an object ({}), which --format {} does not know",
                                                         object.name, value_type(value), options.cat_format))
        .of_tensor(object.name)
        .hint("drop --format, or give --json");
  }
  const std::string text = is_text(value) ? std::string(value->text) : value_text(catalog, value, kWholeValue);
  session.out << (session.out_is_terminal ? printable(text) : text) << '\n';
}

// ---- Tensors.

void check_format(const Session& session, const Options& options, const SelectedTensor& tensor) {
  const std::string& format = options.cat_format;
  const std::string_view dtype = dtype_name(tensor.dtype);
  const bool castable = is_castable(tensor.dtype);
  if (session.out_is_terminal && (format == "raw" || format == "npy")) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("--format {} is not for a terminal", format))
        .hint("redirect it to a file or a pipe, or give --format text");
  }
  const bool fits = format == "npy" ? fits_npy(tensor.dtype) : format == "raw" || ElementText::can_show(tensor.dtype);
  if (fits) return;
  const std::string_view wider = is_complex(tensor.dtype) ? "complex64" : "float32";
  throw Error(ErrorCode::kUnsupported, format == "npy" ? fmt::format("numpy has no dtype {}", dtype)
                                                       : fmt::format("elements of {} have no text", dtype))
      .of_tensor(tensor.name)
      .hint(castable ? repeat_command(options, "--cast " + shell_quoted(fmt::format("**={}", wider)))
                     : repeat_command(options, "--format raw"));
}

void print_tensor(const Session& session, const Options& options, OpenSource& source, const SelectedTensor& tensor,
                  const Slice& slice, Log& log) {
  check_format(session, options, tensor);
  source.reader->locate(std::span(&tensor.source, 1));
  const Catalog view = sliced(source.catalog(), tensor.source, slice.box);
  SelectedTensor part = tensor;
  part.source = 0;
  Progress progress;
  BlockReader elements(view, *source.reader, part, progress);
  const Printed printed{tensor.name, tensor.dtype, slice.shape, elements};
  if (options.json) {
    cat_json(session, printed);
  } else if (options.cat_format == "text") {
    cat_text(session, printed);
  } else {
    options.cat_format == "npy" ? cat_npy(session, printed) : cat_raw(session, printed);
  }
  log.debug(fmt::format("read {} bytes of '{}' in {} calls", progress.bytes_read.load(), tensor.name,
                        progress.read_calls.load()));
}

int cat(Session& session, const Options& options) {
  Log log(session, options);
  OpenSource source = open_source(session, options, options.sources, log);
  const Catalog& catalog = source.catalog();
  Selection selection = choose(catalog, options.selection);
  const SlicedName asked = split_slice(options.name);
  for (const bool with_slice : {false, true}) {
    if (with_slice && !asked.has_slice) continue;
    const auto tensors = named(selection.tensors, with_slice ? asked.name : std::string_view(options.name));
    if (tensors.empty()) continue;
    const SelectedTensor& tensor = only_one(tensors, catalog.tensors, options, source);
    const Dims shape = catalog.tensors[tensor.source].shape;
    print_tensor(session, options, source, tensor,
                 with_slice ? parse_slice(asked.slice, shape, tensor.name) : whole(shape), log);
    return 0;
  }
  source.reader->load_objects();
  selection = choose(catalog, options.selection);
  const auto objects = named(selection.objects, options.name);
  if (objects.empty()) throw absent_name(selection, asked.name, source.label);
  print_object(session, options, catalog, only_one(objects, catalog.objects, options, source));
  return 0;
}

}  // namespace

int run_cat(Session& session, const Options& options) {
  if (session.end_at_once) session.end_at_once();
  return on_rank_zero(session, [&] { return cat(session, options); });
}

}  // namespace shard::app
