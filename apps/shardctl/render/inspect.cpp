#include "apps/shardctl/render/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include "apps/shardctl/source/inspect_numbers.h"
#include "apps/shardctl/text/alike_layers.h"
#include "apps/shardctl/text/sharding_text.h"
#include "apps/shardctl/text/text_sink.h"
#include "apps/shardctl/text/units.h"
#include "apps/shardctl/text/value_text.h"
#include "libshard/catalog/chunk_place.h"
#include "libshard/core/box.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/parallel.h"
#include "libshard/core/short_text.h"

namespace shard::app {
namespace {

constexpr std::size_t kLayoutsShown = 8;

/// The separator of columns on a terminal, or of fields for programs.
void gap(TextSink& sink, bool in_columns) { in_columns ? sink.spaces(2) : sink.tab(); }

std::uint32_t file_of(const Catalog& catalog, const Chunk& chunk) { return catalog.storage_of(chunk).file; }

/// "a.pt", or "a.pt and 3 more": the first file and the number of others. "-" if there is no file.
std::string files_text(const Catalog& catalog, std::vector<std::uint32_t> files) {
  if (files.empty()) return "-";
  const std::string& first = catalog.files[files.front()].path;
  std::ranges::sort(files);
  const auto count = files.size() - std::ranges::unique(files).size();
  return count == 1 ? first : fmt::format("{} and {} more", first, count - 1);
}

std::string file_text(const Catalog& catalog, const Tensor& tensor) {
  std::vector<std::uint32_t> files;
  for (const Chunk& chunk : catalog.chunks_of(tensor)) files.push_back(file_of(catalog, chunk));
  return files_text(catalog, std::move(files));
}

/// The layout column: the tensor's sharding, its rank if it is on only one, and the tensor of which it is an alias.
std::string layout_text(const Catalog& catalog, const SelectedTensor& selected, const Aliases& aliases) {
  const Tensor& tensor = catalog.tensors[selected.source];
  std::string text =
      tensor.rank >= 0 ? fmt::format("only of rank {}", tensor.rank) : sharding_text(catalog, tensor, Detail::kSizes);
  if (const auto first = aliases.first_of(selected)) {
    text += fmt::format("{}alias of {}", text.empty() ? "" : ", ", *first);
  }
  return text;
}

constexpr std::size_t kColumns = 7;
constexpr std::size_t kSizeColumn = 3;  ///< The index of the size column.
/// The index of the last column, which contains the number of tensors in the line.
constexpr std::array<std::string_view, kColumns> kHeads{"name", "dtype", "shape", "size", "sharding", "file", ""};
using Row = std::array<std::string, kColumns>;

/// A line per chunk: "  [0:9, 0:16]  rank 0  __0_0.distcp  bytes 832 to 1120". \pre the tensor is located
void chunk_lines(TextSink& sink, const Catalog& catalog, const Tensor& tensor, bool in_columns) {
  for (const Chunk& chunk : catalog.chunks_of(tensor)) {
    const StoredTensor& stored = catalog.stored[chunk.stored];
    gap(sink, in_columns);
    sink.add(to_string(Box(chunk.offsets, chunk.sizes)));
    gap(sink, in_columns);
    sink.add(stored.rank < 0 ? std::string("no rank") : fmt::format("rank {}", stored.rank));
    gap(sink, in_columns);
    sink.add(catalog.files[catalog.storages[stored.storage].file].path);
    gap(sink, in_columns);
    const ChunkPlace place = place_of(catalog, chunk);
    sink.line(place.known ? fmt::format("bytes {} to {}", place.offset_bytes, place.offset_bytes + place.span_bytes)
                          : std::string("decoded when read"));
  }
}

/// Numbers texts in the order of their first appearance.
class TextNumbers {
 public:
  std::uint32_t operator()(std::string text) {
    return numbers_.try_emplace(std::move(text), static_cast<std::uint32_t>(numbers_.size())).value;
  }

 private:
  HashMap<std::string, std::uint32_t> numbers_;
};

/// The lines for a terminal, in columns.
class TensorTable {
 public:
  TensorTable(const Catalog& catalog, const Selection& selection, const Aliases& aliases)
      : catalog_(catalog), selection_(selection), aliases_(aliases) {}

  void add(TextSink& sink, InspectLines how) const {
    const std::vector<LayerLine> lines = lines_of(how.join_layers);
    std::array<std::size_t, kColumns> widths{};
    for (const LayerLine& line : lines) {
      const Row row = row_of(line);
      for (std::size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], printable(row[i]).size());
    }
    if (lines.empty()) return;
    for (std::size_t i = 0; i < kColumns; ++i) {
      if (widths[i] > 0) widths[i] = std::max(widths[i], kHeads[i].size());
    }
    Row heads;
    for (std::size_t i = 0; i < kColumns; ++i) heads[i] = widths[i] > 0 ? kHeads[i] : std::string_view();
    add_row(sink, heads, widths);
    for (const LayerLine& line : lines) {
      add_row(sink, row_of(line), widths);
      if (how.chunks) chunk_lines(sink, catalog_, tensor_of(line.members.front()), true);
    }
  }

 private:
  const Tensor& tensor_of(std::uint32_t member) const { return catalog_.tensors[selection_.tensors[member].source]; }

  /// Tensors with the same dtype, shape and layout may share a line.
  std::vector<LayerLine> lines_of(bool join_layers) const {
    TextNumbers kinds;
    std::vector<LayerTensor> tensors;
    tensors.reserve(selection_.tensors.size());
    for (std::uint32_t i = 0; i < selection_.tensors.size(); ++i) {
      const SelectedTensor& selected = selection_.tensors[i];
      const std::uint32_t kind =
          join_layers ? kinds(fmt::format("{} {} {}", dtype_name(selected.dtype), to_string(tensor_of(i).shape),
                                          layout_text(catalog_, selected, aliases_)))
                      : i;
      tensors.push_back({selected.name, kind});
    }
    return join_alike_layers(tensors);
  }

  Row row_of(const LayerLine& line) const {
    const SelectedTensor& first = selection_.tensors[line.members.front()];
    const Dims shape = tensor_of(line.members.front()).shape;
    const std::size_t count = line.members.size();
    return {line.name,
            std::string(dtype_name(first.dtype)),
            to_string(shape),
            human_bytes(packed_bytes(element_count(shape), first.dtype)),
            layout_text(catalog_, first, aliases_),
            file_text(line),
            count == 1 ? std::string() : fmt::format("x{}", count)};
  }

  /// The file of the first chunk and the number of other files.
  std::string file_text(const LayerLine& line) const {
    std::vector<std::uint32_t> files;
    for (const std::uint32_t member : line.members) {
      for (const Chunk& chunk : catalog_.chunks_of(tensor_of(member))) files.push_back(file_of(catalog_, chunk));
    }
    return files_text(catalog_, std::move(files));
  }

  static void add_row(TextSink& sink, const Row& row, const std::array<std::size_t, kColumns>& widths) {
    std::size_t pending = 0;  // Spaces are printed only before more text.
    for (std::size_t i = 0; i < kColumns; ++i) {
      if (widths[i] == 0) continue;
      const std::size_t padding = widths[i] - printable(row[i]).size();
      if (!row[i].empty()) {
        sink.spaces(pending + (i == kSizeColumn ? padding : 0));
        sink.add(row[i]);
        pending = 0;
      }
      pending += 2 + (i == kSizeColumn ? 0 : padding);
    }
    sink.end_line();
  }

  const Catalog& catalog_;
  const Selection& selection_;
  const Aliases& aliases_;
};

void heads_line(TextSink& sink) {
  for (std::size_t i = 0; i + 1 < kColumns; ++i) {
    if (i > 0) sink.tab();
    sink.add(kHeads[i]);
  }
  sink.end_line();
}

/// Texts of sizes. Most tensors of a checkpoint have one of few sizes.
class SizeTexts {
 public:
  const std::string& operator()(std::int64_t bytes) {
    constexpr std::size_t kMost = 4096;
    if (texts_.size() >= kMost) texts_.clear();
    const auto [text, is_new] = texts_.try_emplace(bytes);
    if (is_new) text = human_bytes(bytes);
    return text;
  }

 private:
  HashMap<std::int64_t, std::string> texts_;
};

/// Prints one tab-separated line. It creates few temporary strings, because there may be a million lines.
void tensor_line(TextSink& sink, const Catalog& catalog, const SelectedTensor& selected, const Aliases& aliases,
                 SizeTexts& sizes) {
  const Tensor& tensor = catalog.tensors[selected.source];
  sink.add(selected.name);
  sink.tab();
  sink.add(dtype_name(selected.dtype));
  sink.tab();
  sink.add("[");
  for (int d = 0; d < tensor.shape.size(); ++d) {
    if (d > 0) sink.add(", ");
    sink.add_number(tensor.shape[d]);
  }
  sink.add("]");
  sink.tab();
  sink.add(sizes(packed_bytes(element_count(tensor.shape), selected.dtype)));
  sink.tab();
  const bool simple = tensor.chunk_count == 1 && tensor.rank < 0 && tensor.sharding == kNoIndex &&
                      catalog.stored_of(tensor).rank < 0 && !aliases.first_of(selected);
  if (simple) {
    const Chunk& chunk = catalog.chunks[tensor.first_chunk];
    sink.tab();
    sink.add(catalog.file_of(chunk).path);
  } else {
    sink.add(layout_text(catalog, selected, aliases));
    sink.tab();
    sink.add(file_text(catalog, tensor));
  }
  sink.end_line();
}

/// Prints the lines of all tensors. Threads each build the lines of a block, which are then printed in order, because
/// there may be a million lines.
void tensor_lines(const Session& session, const Catalog& catalog, const Selection& selection, const Aliases& aliases,
                  bool chunks) {
  const std::size_t block = chunks ? 64 : 1 << 14;  // A tensor may have thousands of chunks.
  const std::span<const SelectedTensor> tensors = selection.tensors;
  const auto lines_of = [&](std::span<const SelectedTensor> some, std::ostringstream& text) {
    TextSink sink(text);
    SizeTexts sizes;
    for (const SelectedTensor& selected : some) {
      tensor_line(sink, catalog, selected, aliases, sizes);
      if (chunks) chunk_lines(sink, catalog, catalog.tensors[selected.source], false);
    }
  };
  const int threads = worker_count(session);
  for (std::size_t begin = 0; begin < tensors.size() && session.out.good();) {
    const std::size_t blocks = (tensors.size() - begin) / block + 1;
    std::vector<std::ostringstream> texts(std::min(blocks, static_cast<std::size_t>(threads)));
    for_each_index(texts.size(), threads, [&](std::size_t i) {
      const std::size_t first = begin + i * block;
      lines_of(tensors.subspan(first, std::min(block, tensors.size() - first)), texts[i]);
    });
    for (const std::ostringstream& text : texts) session.out << text.view();
    begin += texts.size() * block;
  }
}

/// "      12 S(0) over 4 ranks": the number of tensors per layout, most frequent first. Empty if none is sharded.
void layouts(TextSink& sink, const Catalog& catalog, const Selection& selection) {
  if (catalog.chunks.size() == catalog.tensors.size() && catalog.shardings.empty()) return;
  HashMap<std::string, std::size_t> counts;
  for (const SelectedTensor& selected : selection.tensors) {
    const Tensor& tensor = catalog.tensors[selected.source];
    const bool is_whole = tensor.chunk_count == 1 && tensor.sharding == kNoIndex;
    const bool is_own = tensor.rank >= 0;
    ++counts[is_own ? "only of one rank" : is_whole ? "whole" : sharding_text(catalog, tensor, Detail::kBrief)];
  }
  std::vector<std::pair<std::size_t, std::string>> by_count;
  for (const auto& [text, count] : counts.entries()) by_count.emplace_back(count, text);
  std::ranges::sort(by_count, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  for (std::size_t i = 0; i < std::min(kLayoutsShown, by_count.size()); ++i) {
    sink.line(fmt::format("{:>8} {}", by_count[i].first, by_count[i].second));
  }
  if (by_count.size() <= kLayoutsShown) return;
  const auto others = static_cast<std::int64_t>(by_count.size() - kLayoutsShown);
  sink.line(fmt::format("         and {}", plural(others, "other layout")));
}

void object_line(TextSink& sink, const Catalog& catalog, const SelectedObject& selected, bool terminal) {
  const Object& object = catalog.objects[selected.source];
  sink.add(selected.name);
  gap(sink, terminal);
  sink.add(object.value == nullptr ? "object" : value_type(object.value));
  gap(sink, terminal);
  sink.add(object.value == nullptr ? "(not read; --json shows its value)"
                                   : value_text(catalog, object.value, kObjectPreview));
  if (object.rank >= 0) {
    gap(sink, terminal);
    sink.add(fmt::format("only of rank {}", object.rank));
  }
  sink.end_line();
}

/// "7000000000 elements (7.00 billion)"
std::string elements_text(std::int64_t count) {
  const std::string text = plural(count, "element");
  if (count < 1'000'000) return text;
  const bool is_billions = count >= 1'000'000'000;
  return fmt::format("{} ({:.2f} {})", text, static_cast<double>(count) / (is_billions ? 1e9 : 1e6),
                     is_billions ? "billion" : "million");
}

/// "bfloat16 16.1 GB, float32 4.1 kB", largest first.
std::string dtypes_text(const Totals& sum) {
  std::vector<std::pair<std::int64_t, std::string_view>> dtypes;
  for (int i = 0; i < kDTypeCount; ++i) {
    const std::int64_t bytes = sum.bytes_of_dtype[static_cast<std::size_t>(i)];
    if (bytes > 0) dtypes.emplace_back(-bytes, dtype_name(static_cast<DType>(i)));
  }
  std::ranges::sort(dtypes);
  std::string text;
  for (const auto& [bytes, name] : dtypes) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, human_bytes(-bytes));
  }
  return text;
}

void summary(TextSink& sink, const OpenSource& source, const Selection& selection) {
  const Catalog& catalog = source.catalog();
  const Totals sum = totals(catalog, selection);
  std::string first = fmt::format("{}: {}", source.label, catalog.format);
  if (!catalog.format_version.empty()) first += fmt::format(" ({})", catalog.format_version);
  if (catalog.world_size) first += fmt::format(", written by {}", plural(*catalog.world_size, "rank"));
  sink.line(first);
  sink.add(fmt::format("{}, {}, {}, {} in {}", plural(std::ssize(selection.tensors), "tensor"),
                       elements_text(sum.elements), plural(std::ssize(selection.objects), "object"),
                       human_bytes(sum.logical_bytes), plural(std::ssize(catalog.files), "file")));
  if (sum.stored_bytes != sum.logical_bytes) sink.add(fmt::format(", {} stored", human_bytes(sum.stored_bytes)));
  sink.end_line();
  if (const std::string dtypes = dtypes_text(sum); !dtypes.empty()) sink.line(dtypes);
  for (const QuantizedCount& count : quantized_counts(catalog)) {
    sink.line(fmt::format("quantized: {} ({})", plural(count.modules, "module"), quantized_form_name(count.form)));
  }
}

}  // namespace

void render_text(const Session& session, const OpenSource& source, const Selection& selection, InspectLines lines) {
  const Catalog& catalog = source.catalog();
  const Aliases aliases(catalog, selection);
  TextSink sink(session.out);
  summary(sink, source, selection);
  layouts(sink, catalog, selection);
  if (session.out_is_terminal) {
    TensorTable(catalog, selection, aliases).add(sink, lines);
  } else {
    if (!selection.tensors.empty()) heads_line(sink);
    sink.flush();
    tensor_lines(session, catalog, selection, aliases, lines.chunks);
  }
  for (const SelectedObject& object : selection.objects) object_line(sink, catalog, object, session.out_is_terminal);
}

}  // namespace shard::app
