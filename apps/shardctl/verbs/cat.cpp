#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/shardctl/request/command_text.h"
#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/session/session.h"
#include "apps/shardctl/source/cast_choice.h"
#include "apps/shardctl/source/source.h"
#include "apps/shardctl/text/element_text.h"
#include "apps/shardctl/text/text_sink.h"
#include "apps/shardctl/text/value_text.h"
#include "apps/shardctl/verbs/verbs.h"
#include "libshard/catalog/quantized.h"
#include "libshard/catalog/selection/glob.h"
#include "libshard/catalog/selection/slice.h"
#include "libshard/compare/pass.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/core/json_writer.h"
#include "libshard/core/nearest.h"
#include "libshard/core/object_faults.h"
#include "libshard/io/paths.h"

namespace shard::app {
namespace {

/// The tensor to print: its description and its elements.
struct Printed {
  std::string_view name;
  DType dtype;
  std::vector<std::int64_t> shape;
  BlockReader& elements;
};

/// Calls `each` with consecutive blocks of elements, until the end or until the reader of the pipe stops. If requests
/// take long, a block is so large that all of them have some of it.
template <class Each>
void for_each_block(const Session& session, BlockReader& elements, const Each& each) {
  const std::int64_t step = elements.block_elements(kBlockBytes * session.requests_at_once);
  for (std::int64_t begin = 0; begin < elements.elements() && session.out.good(); begin += step) {
    each(elements.read(begin, std::min(begin + step, elements.elements())));
  }
}

/// The header of a .npy file: magic, version, length and a Python dict, padded to a multiple of 64.
std::string npy_header(DType dtype, const std::vector<std::int64_t>& shape) {
  constexpr std::size_t kLead = 10;
  std::string dict = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", dtype_row(dtype).numpy,
                                 fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  dict.append(63 - (kLead + dict.size()) % 64, ' ');
  dict += '\n';
  std::string header = "\x93NUMPY\x01";
  header += '\0';
  header += static_cast<char>(dict.size() & 0xFF);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

/// Groups elements into lines, and lines into matrices.
class TextLayout {
 public:
  TextLayout(TextSink& sink, const std::vector<std::int64_t>& shape, std::size_t width)
      : sink_(sink), shape_(shape), width_(width) {
    if (shape.size() >= 2) columns_ = shape.back(), rows_ = shape[shape.size() - 2];
  }

  void add(std::string_view text) {
    if (shape_.size() > 2 && element_ % (rows_ * columns_) == 0) head();
    if (element_ % columns_ != 0) sink_.spaces(1);
    sink_.spaces(width_ - std::min(width_, text.size()));
    sink_.add(text);
    if (++element_ % columns_ == 0) sink_.end_line();
  }

 private:
  /// "# [0, 3, :, :]"
  void head() {
    std::vector<std::int64_t> index(shape_.size() - 2);
    set_index<std::int64_t>(index, std::span(shape_).first(index.size()), element_ / (rows_ * columns_));
    if (element_ > 0) sink_.end_line();
    sink_.line(fmt::format("# [{}, :, :]", fmt::join(index, ", ")));
  }

  TextSink& sink_;
  const std::vector<std::int64_t>& shape_;
  const std::size_t width_;
  std::int64_t columns_ = 1, rows_ = 1, element_ = 0;
};

/// The width of aligned columns; 0 if columns are not aligned. Columns are aligned on a terminal if the first block
/// contains all elements.
std::size_t aligned_width(const Session& session, const Printed& tensor, ElementText& text, std::int64_t in_block) {
  if (!session.out_is_terminal || tensor.shape.size() < 2 || in_block != tensor.elements.elements()) return 0;
  std::size_t width = 0;
  for (std::int64_t i = 0; i < in_block; ++i) width = std::max(width, text[i].size());
  return width;
}

/// Whether numpy supports the dtype.
bool fits_npy(DType dtype) { return !dtype_row(dtype).numpy.empty(); }

/// Prints the packed little-endian elements.
void cat_raw(const Session& session, const Printed& tensor) {
  for_each_block(session, tensor.elements, [&](std::span<const std::byte> block) {
    session.out.write(reinterpret_cast<const char*>(block.data()), static_cast<std::streamsize>(block.size()));
  });
}

/// Prints a .npy file (numpy/lib/format.py, version 1.0).
void cat_npy(const Session& session, const Printed& tensor) {
  session.out << npy_header(tensor.dtype, tensor.shape);
  cat_raw(session, tensor);
}

/// Prints one element per line for a vector and one row per line for a matrix. A tensor with more dimensions becomes a
/// series of matrices, each after a line "# [i, j, :, :]" and separated by empty lines. numpy.loadtxt reads this. On a
/// terminal, the columns of small tensors are aligned.
void cat_text(const Session& session, const Printed& tensor) {
  TextSink sink(session.out);
  ElementText text(tensor.dtype, Spelling::kPython);
  std::optional<TextLayout> layout;
  for_each_block(session, tensor.elements, [&](std::span<const std::byte> block) {
    text.take(block);
    if (!layout) layout.emplace(sink, tensor.shape, aligned_width(session, tensor, text, text.size()));
    for (std::int64_t i = 0; i < text.size(); ++i) layout->add(text[i]);
  });
}

/// Like for_each_block, but reads all elements before the first call, which finds those that cannot be read. If they
/// need more than a quarter of the memory for reading, they are then read a second time.
class CheckedBlocks {
 public:
  CheckedBlocks(const Session& session, BlockReader& elements) : session_(session), elements_(elements) {
    const std::int64_t most_bytes = reading_memory_bytes(session) / 4;
    std::int64_t bytes = 0;
    for_each_block(session, elements, [&](std::span<const std::byte> block) {
      bytes += std::ssize(block);
      is_kept_ = bytes <= most_bytes;
      if (is_kept_) kept_.emplace_back(block.begin(), block.end());
    });
  }

  template <class Each>
  void for_each(const Each& each) const {
    if (!is_kept_) return for_each_block(session_, elements_, each);
    for (const std::vector<std::byte>& block : kept_) each(std::span<const std::byte>(block));
  }

 private:
  const Session& session_;
  BlockReader& elements_;
  std::vector<std::vector<std::byte>> kept_;
  bool is_kept_ = true;
};

/// Prints one document `shardctl.cat/1`: name, type, dtype, shape, and all elements as one list, row-major.
void cat_json(const Session& session, const Printed& tensor) {
  const CheckedBlocks blocks(session, tensor.elements);  // A failure then prints only its own document.
  JsonWriter json(session.out);
  ElementText text(tensor.dtype, Spelling::kJson);
  json.document("shardctl.cat/1", [&] {
    json.key("name"), json.string(tensor.name);
    json.key("type"), json.string("torch.Tensor");
    json.key("dtype"), json.string(dtype_name(tensor.dtype));
    json.key("shape"), json.numbers(tensor.shape);
    json.key("values"), json.begin_array();
    blocks.for_each([&](std::span<const std::byte> block) {
      text.take(block);
      for (std::int64_t i = 0; i < text.size(); ++i) json.literal(text[i]);
    });
    json.end_array();
  });
}

/// The entries with that name. \pre entries are sorted by name
template <class Entries>
std::span<const typename Entries::value_type> named(const Entries& entries, std::string_view name) {
  const auto found = std::ranges::equal_range(entries, name, {}, [](const auto& entry) { return entry.name; });
  return {found.begin(), found.end()};
}

/// A command that shows the value on `rank`, if that rank's file can be read alone; otherwise empty.
std::string line_of_rank(const std::string& asked, const OpenSource& source, int rank) {
  const Catalog& catalog = source.catalog();
  const auto file = std::ranges::find(catalog.files, rank, &File::rank);
  if (catalog.format != "torch-ranks" || file == catalog.files.end()) return {};
  const auto is_it = [&](const std::string& path) { return base_name(path) == file->path; };
  const auto named = std::ranges::find_if(source.paths, is_it);
  const std::string path = named != source.paths.end() ? *named : join_path(source.paths.front(), file->path);
  return fmt::format("shardctl cat {} {} --from torch", shell_quoted(path), shell_quoted(asked));
}

/// Refuses a name that several entries have, because the user may mean any of them.
template <class Entry, class OfCatalog>
const Entry& only_one(std::span<const Entry> entries, const OfCatalog& of_catalog, const std::string& asked,
                      const OpenSource& source) {
  if (entries.size() == 1) return entries.front();
  const std::string name(entries.front().name);
  const int rank = of_catalog[entries.front().source].rank;
  if (rank >= 0) {
    throw Error(ErrorCode::kCorruption,
                fmt::format("cannot choose: '{}' has different values on different ranks", name))
        .of_tensor(name)
        .because(fmt::format("there are {} values", entries.size()))
        .hint(line_of_rank(asked, source, rank));
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("cannot choose a tensor: {} paths are named '{}'", entries.size(), name))
      .of_tensor(name);
}

bool starts_below(std::string_view entry, std::string_view name) {
  return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '.';
}

/// A command that lists the names that match a pattern; empty if `asked` is not a pattern, or matches nothing.
std::string listing_of_glob(const std::vector<std::string_view>& names, std::string_view asked,
                            const std::vector<std::string>& paths) {
  if (asked.find_first_of("*?") == std::string_view::npos) return {};
  const std::string glob = crossing_dots(asked);
  const GlobSet globs({glob});
  if (std::ranges::none_of(names, [&](std::string_view name) { return globs.matches(name); })) return {};
  std::string line = "shardctl inspect";
  for (const std::string& path : paths) line += " " + shell_quoted(path);
  return line + " --include " + shell_quoted(glob);
}

Error object_has_no_slices(std::vector<std::string> words, const std::string& asked, std::string_view name) {
  std::ranges::replace(words, asked, std::string(name));
  return usage(fmt::format("'{}' is an object, and only tensors have slices", name))
      .of_tensor(name)
      .hint(repeat_command(words, ""));
}

Error absent_name(const Selection& selection, std::string_view asked, std::string_view source,
                  const std::vector<std::string>& paths) {
  Error error(ErrorCode::kNotFound, fmt::format("{} has no tensor or object named '{}'", source, asked));
  error.of_tensor(asked);
  std::vector<std::string_view> names;
  for (const SelectedTensor& tensor : selection.tensors) names.push_back(tensor.name);
  for (const SelectedObject& object : selection.objects) names.push_back(object.name);
  if (const std::string list = listing_of_glob(names, asked, paths); !list.empty()) {
    return error.because("cat takes one whole name, not a pattern").hint(list);
  }
  const auto below = std::ranges::find_if(names, [&](std::string_view name) { return starts_below(name, asked); });
  if (below != names.end()) return error.hint(fmt::format("give a whole name, such as '{}'", *below));
  const std::string near = names.size() > kMaxSuggestNames ? std::string() : nearest(asked, names);
  return near.empty() ? error.hint("list the names with 'shardctl inspect'")
                      : error.hint(fmt::format("did you mean '{}'?", near));
}

// ---- Objects.

void print_object_json(const Session& session, const Catalog& catalog, std::string_view name, const Value* value) {
  const bool has_summary = !is_scalar(value);
  const WholeText summary(catalog, has_summary ? value : nullptr);
  JsonWriter json(session.out);
  json.document("shardctl.cat/1", [&] {
    json.key("name"), json.string(name);
    json.key("type"), json.string(value_type(value));
    json.key("value"), write_value(json, value);
    if (has_summary) {
      json.key("summary"), json.begin_string();
      summary.print([&](std::string_view piece) { json.piece(piece); });
      json.end_string();
    }
  });
}

/// The bytes of a str (as UTF-8) or of a bytes object; nothing for other values.
std::optional<std::string_view> content_of(const Value* value) {
  if (value == nullptr) return std::nullopt;
  const bool has_content =
      value->kind == ValueKind::kString || value->kind == ValueKind::kBytes || value->kind == ValueKind::kByteArray;
  return has_content ? std::optional(value->text()) : std::nullopt;
}

void refuse_terminal(const Session& session, const std::string& format) {
  if (!session.out_is_terminal || (format != "raw" && format != "npy")) return;
  throw usage(fmt::format("cannot print --format {} to a terminal", format))
      .hint("redirect it to a file or a pipe, or give --format text");
}

void print_object(const Session& session, const std::string& format, const Catalog& catalog,
                  const SelectedObject& object) {
  const Value* value = catalog.objects[object.source].value;
  if (session.common.json) return print_object_json(session, catalog, object.name, value);
  const std::optional<std::string_view> content = content_of(value);
  if (format == "raw" && content) {
    refuse_terminal(session, format);
    session.out.write(content->data(), std::ssize(*content));
    return;
  }
  if (format == "npy" || format == "raw") {
    throw usage(fmt::format("cannot print '{}' with --format {}", object.name, format))
        .because(fmt::format("it is an object ({})", value_type(value)))
        .of_tensor(object.name)
        .hint("drop --format, or give --json");
  }
  const bool is_text = value != nullptr && value->kind == ValueKind::kString;
  const WholeText text(catalog, is_text ? nullptr : value);
  TextSink sink(session.out);
  if (is_text) sink.lines(value->text());
  text.print([&](std::string_view piece) { sink.add(piece); });
  sink.end_line();
}

// ---- Tensors.

/// The command line without its casts, of which the first that matches a tensor counts.
std::vector<std::string> without_casts(std::vector<std::string> arguments) {
  for (auto at = arguments.begin(); at != arguments.end() && *at != "--";) {
    const bool takes_next = *at == "--cast" && at + 1 != arguments.end();
    at = takes_next || at->starts_with("--cast=") ? arguments.erase(at, at + (takes_next ? 2 : 1)) : at + 1;
  }
  return arguments;
}

void check_format(const Session& session, const std::string& format, const Catalog& catalog,
                  const SelectedTensor& tensor) {
  const std::string_view dtype = dtype_name(tensor.dtype);
  refuse_terminal(session, format);
  const bool fits = format == "npy" ? fits_npy(tensor.dtype) : format == "raw" || ElementText::can_show(tensor.dtype);
  if (fits) return;
  const bool castable = is_castable(tensor.dtype) && find_quantized(catalog).is_plain(tensor.source);
  const std::string_view wider = is_complex(tensor.dtype) ? "complex64" : "float32";
  throw Error(ErrorCode::kUnsupported, format == "npy"
                                           ? fmt::format("cannot print {} as npy: numpy has no such dtype", dtype)
                                           : fmt::format("cannot print elements of {} as text", dtype))
      .of_tensor(tensor.name)
      .hint(castable ? repeat_command(without_casts(session.command.arguments),
                                      "--cast " + shell_quoted(fmt::format("{}={}", glob_of_name(tensor.name), wider)))
                     : repeat_command(session.command.arguments, "--format raw"));
}

void print_tensor(const Session& session, const std::string& format, OpenSource& source, const SelectedTensor& tensor,
                  const Slice& slice, Log& log) {
  check_format(session, format, source.catalog(), tensor);
  source.reader->locate(std::span(&tensor.source, 1));
  const Catalog view = sliced(source.catalog(), tensor.source, slice.box);
  SelectedTensor part = tensor;
  part.source = 0;
  Progress progress;
  BufferPool pool(reading_memory_bytes(session));
  BlockReader elements(view, *source.reader, part, progress, pool, worker_count(session));
  const Printed printed{tensor.name, tensor.dtype, slice.shape, elements};
  if (session.common.json) {
    cat_json(session, printed);
  } else if (format == "text") {
    cat_text(session, printed);
  } else {
    format == "npy" ? cat_npy(session, printed) : cat_raw(session, printed);
  }
  log.debug(fmt::format("read {} bytes of '{}' in {} calls", progress.bytes_read.load(), tensor.name,
                        progress.read_calls.load()));
}

/// The selection to open the source with. If no option renames, it is the printed tensor, so others may have gaps.
SelectionOptions opened_names(const Request& request, const SlicedName& asked) {
  SelectionOptions names = request.select;
  const bool renames = !names.strip_prefix.empty() || !names.add_prefix.empty() || !names.rename.empty();
  if (!renames && request.read.map.empty()) names.include = {glob_of_name(request.cat.name), glob_of_name(asked.name)};
  return names;
}

void throw_any(const ObjectFaults& faults) {
  if (!faults.empty()) throw Error(faults.first());
}

int cat(Session& session, const Request& request) {
  Log log(session);
  const SlicedName asked = split_slice(request.cat.name);
  const SelectionOptions names = opened_names(request, asked);
  ObjectFaults faults;
  OpenSource source = open_source(session, request.read, log, {.selection = &names, .findings = &faults});
  throw_any(faults);
  warn_of_source(session, source);
  const Catalog& catalog = source.catalog();
  Selection selection = choose(catalog, request.select);
  for (const bool with_slice : {false, true}) {
    if (with_slice && !asked.has_slice) continue;
    const auto tensors = named(selection.tensors, with_slice ? asked.name : std::string_view(request.cat.name));
    if (tensors.empty()) continue;
    const SelectedTensor& tensor = only_one(tensors, catalog.tensors, request.cat.name, source);
    warn_all(session, checked_casts(session, request.select, source,
                                    std::span(&tensor, 1)));  // Warnings about other tensors do not matter.
    const Dims shape = catalog.tensors[tensor.source].shape;
    print_tensor(session, request.cat.format, source, tensor,
                 with_slice ? parse_slice(asked.slice, shape, tensor.name) : whole(shape), log);
    return 0;
  }
  source.reader->load_objects();
  throw_any(faults);
  selection = choose(catalog, request.select);
  const auto objects = named(selection.objects, request.cat.name);
  if (objects.empty() && asked.has_slice && !named(selection.objects, asked.name).empty()) {
    throw object_has_no_slices(session.command.arguments, request.cat.name, asked.name);
  }
  if (objects.empty()) throw absent_name(selection, asked.name, source.label, request.read.paths);
  print_object(session, request.cat.format, catalog, only_one(objects, catalog.objects, request.cat.name, source));
  return 0;
}

}  // namespace

void check_cat(const Session& session, Request& request) {
  std::vector<std::string>& words = request.read.paths;
  if (words.size() < 2) {
    throw usage("cat needs a checkpoint and a tensor or object name")
        .hint("give both: shardctl cat SRC NAME; 'shardctl inspect SRC' lists the names");
  }
  if (session.common.json && request.cat.format != "text") {
    throw usage(fmt::format("--json and --format {} cannot be combined", request.cat.format)).hint("give only one");
  }
  request.cat.name = words.back();
  words.pop_back();
}

int run_cat(Session& session, const Request& request) {
  if (session.end_at_once) session.end_at_once();
  const int code = on_rank_zero(session, [&] { return cat(session, request); });
  expect_unchanged_source(session);
  return code;
}

}  // namespace shard::app
