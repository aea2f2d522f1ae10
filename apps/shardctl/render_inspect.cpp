#include "apps/shardctl/render_inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "apps/shardctl/inspect_numbers.h"
#include "apps/shardctl/sharding_text.h"
#include "apps/shardctl/value_text.h"
#include "libshard/core/box.h"

namespace shard::app {
namespace {

constexpr std::size_t kObjectPreview = 200;
constexpr std::size_t kLayoutsShown = 8;

void add_printable(TextSink& sink, std::string_view text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
  if (plain) {
    sink.add(text);
  } else {
    sink.add(printable(text));
  }
}

std::string shape_text(Dims shape) {
  std::string text = "[";
  for (int d = 0; d < shape.size(); ++d) text += fmt::format("{}{}", d == 0 ? "" : ", ", shape[d]);
  return text + "]";
}

/// The file of the first chunk, and how many more files there are.
std::string file_text(const Catalog& catalog, const Tensor& tensor) {
  if (tensor.chunk_count == 0) return "-";
  const auto file_of = [&](const Chunk& chunk) { return catalog.storages[catalog.stored[chunk.stored].storage].file; };
  const auto chunks = catalog.chunks_of(tensor);
  const std::string& path = catalog.files[file_of(chunks.front())].path;
  if (chunks.size() == 1) return path;
  std::vector<std::uint32_t> files;
  for (const Chunk& chunk : chunks) files.push_back(file_of(chunk));
  std::sort(files.begin(), files.end());
  const auto count = std::unique(files.begin(), files.end()) - files.begin();
  return count == 1 ? path : fmt::format("{} and {} more", path, count - 1);
}

/// Where it is cut, and what else there is to say: an alias, one rank's own.
std::string layout_text(const Catalog& catalog, const SelectedTensor& selected, const Aliases& aliases) {
  const Tensor& tensor = catalog.tensors[selected.source];
  std::string text =
      tensor.rank >= 0 ? fmt::format("only of rank {}", tensor.rank) : sharding_text(catalog, tensor, Detail::kSizes);
  if (const auto first = aliases.first_of(selected)) {
    text += fmt::format("{}same as {}", text.empty() ? "" : ", ", printable(*first));
  }
  return text;
}

constexpr std::size_t kColumns = 6;
constexpr std::size_t kBytesColumn = 3;
using Row = std::array<std::string, kColumns>;

Row row_of(const Catalog& catalog, const SelectedTensor& selected, const Aliases& aliases) {
  const Tensor& tensor = catalog.tensors[selected.source];
  const std::int64_t bytes = packed_bytes(element_count(tensor.shape), selected.dtype);
  return {printable(selected.name), std::string(dtype_name(selected.dtype)), shape_text(tensor.shape),
          std::to_string(bytes),    layout_text(catalog, selected, aliases), printable(file_text(catalog, tensor))};
}

/// "  [0:9, 0:16]  rank 0  __0_0.distcp  bytes 832 to 1120": a line a chunk. \pre the tensor is located
void chunk_lines(TextSink& sink, const Catalog& catalog, const Tensor& tensor, std::string_view gap) {
  for (const Chunk& chunk : catalog.chunks_of(tensor)) {
    const StoredTensor& stored = catalog.stored[chunk.stored];
    sink.add(gap);
    sink.add(to_string(Box(chunk.offsets, chunk.sizes)));
    sink.add(gap);
    sink.add(stored.rank < 0 ? std::string("no rank") : fmt::format("rank {}", stored.rank));
    sink.add(gap);
    add_printable(sink, catalog.files[catalog.storages[stored.storage].file].path);
    sink.add(gap);
    const Place place = place_of(catalog, chunk);
    sink.add(place.known ? fmt::format("bytes {} to {}\n", place.offset_bytes, place.offset_bytes + place.span_bytes)
                         : std::string("decoded when read\n"));
  }
}

/// The lines of a terminal, in columns.
void tensor_table(TextSink& sink, const Catalog& catalog, const Selection& selection, const Aliases& aliases,
                  bool chunks) {
  std::array<std::size_t, kColumns> widths{};
  for (const SelectedTensor& selected : selection.tensors) {
    const Row row = row_of(catalog, selected, aliases);
    for (std::size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const SelectedTensor& selected : selection.tensors) {
    const Row row = row_of(catalog, selected, aliases);
    std::string line;
    for (std::size_t i = 0; i < kColumns; ++i) {
      if (widths[i] == 0) continue;
      line +=
          i == kBytesColumn ? fmt::format("{:>{}}  ", row[i], widths[i]) : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    sink.add(line);
    sink.add('\n');
    if (chunks) chunk_lines(sink, catalog, catalog.tensors[selected.source], "  ");
  }
}

/// One tab-separated line, without a string made for it: a million of these must take no time.
void tensor_line(TextSink& sink, const Catalog& catalog, const SelectedTensor& selected, const Aliases& aliases) {
  const Tensor& tensor = catalog.tensors[selected.source];
  add_printable(sink, selected.name);
  sink.add('\t');
  sink.add(dtype_name(selected.dtype));
  sink.add("\t[");
  for (int d = 0; d < tensor.shape.size(); ++d) {
    if (d > 0) sink.add(", ");
    sink.add_number(tensor.shape[d]);
  }
  sink.add("]\t");
  sink.add_number(packed_bytes(element_count(tensor.shape), selected.dtype));
  sink.add('\t');
  const bool simple = tensor.chunk_count == 1 && tensor.rank < 0 && tensor.sharding == kNoIndex &&
                      catalog.stored[catalog.chunks[tensor.first_chunk].stored].rank < 0 && !aliases.first_of(selected);
  if (simple) {
    const Chunk& chunk = catalog.chunks[tensor.first_chunk];
    sink.add('\t');
    add_printable(sink, catalog.files[catalog.storages[catalog.stored[chunk.stored].storage].file].path);
  } else {
    sink.add(layout_text(catalog, selected, aliases));
    sink.add('\t');
    add_printable(sink, file_text(catalog, tensor));
  }
  sink.add('\n');
}

/// "   12 tensors  S(0) over 4 ranks": how many lie how, the most first. Nothing where no tensor is cut.
void layouts(TextSink& sink, const Catalog& catalog, const Selection& selection) {
  if (catalog.chunks.size() == catalog.tensors.size() && catalog.shardings.empty()) return;
  std::unordered_map<std::string, std::size_t> counts;
  for (const SelectedTensor& selected : selection.tensors) {
    const Tensor& tensor = catalog.tensors[selected.source];
    const bool is_whole = tensor.chunk_count == 1 && tensor.sharding == kNoIndex;
    const bool is_own = tensor.rank >= 0;
    ++counts[is_own ? "only of one rank" : is_whole ? "whole" : sharding_text(catalog, tensor, Detail::kBrief)];
  }
  std::vector<std::pair<std::size_t, std::string>> by_count;
  for (const auto& [text, count] : counts) by_count.emplace_back(count, text);
  std::ranges::sort(by_count, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  for (std::size_t i = 0; i < std::min(kLayoutsShown, by_count.size()); ++i) {
    sink.add(fmt::format("{:>8} {}\n", by_count[i].first, by_count[i].second));
  }
  if (by_count.size() <= kLayoutsShown) return;
  const auto others = static_cast<std::int64_t>(by_count.size() - kLayoutsShown);
  sink.add(fmt::format("         and {}\n", plural(others, "other way")));
}

void object_line(TextSink& sink, const Catalog& catalog, const SelectedObject& selected, bool terminal) {
  const Object& object = catalog.objects[selected.source];
  const std::string_view gap = terminal ? "  " : "\t";
  add_printable(sink, selected.name);
  sink.add(gap);
  sink.add(object.value == nullptr ? "object" : value_type(object.value));
  sink.add(gap);
  add_printable(sink, object.value == nullptr ? "(its value is read with --json)"
                                              : value_text(catalog, object.value, kObjectPreview));
  if (object.rank >= 0) sink.add(fmt::format("{}only of rank {}", gap, object.rank));
  sink.add('\n');
}

std::string exact_bytes(std::int64_t bytes) {
  const std::string text = human_bytes(bytes);
  return bytes < 10'000 ? text : fmt::format("{} ({} bytes)", text, bytes);
}

void summary(TextSink& sink, const OpenSource& source, const Selection& selection) {
  const Catalog& catalog = source.catalog();
  const Totals sum = totals(catalog, selection);
  std::string first = fmt::format("{}: {}", printable(source.label), catalog.format);
  if (!catalog.format_version.empty()) first += fmt::format(" ({})", printable(catalog.format_version));
  if (catalog.world_size) first += fmt::format(", written by {}", plural(*catalog.world_size, "rank"));
  sink.add(first);
  sink.add(fmt::format("\n{}, {}, {} in {}", plural(std::ssize(selection.tensors), "tensor"),
                       plural(std::ssize(selection.objects), "object"), exact_bytes(sum.logical_bytes),
                       plural(std::ssize(catalog.files), "file")));
  if (sum.stored_bytes != sum.logical_bytes) sink.add(fmt::format(", {} stored", exact_bytes(sum.stored_bytes)));
  sink.add('\n');
}

}  // namespace

void render_text(const Session& session, const OpenSource& source, const Selection& selection, bool chunks) {
  const Catalog& catalog = source.catalog();
  const Aliases aliases(catalog, selection);
  TextSink sink(session.out);
  summary(sink, source, selection);
  layouts(sink, catalog, selection);
  if (session.out_is_terminal) {
    tensor_table(sink, catalog, selection, aliases, chunks);
  } else {
    for (const SelectedTensor& selected : selection.tensors) {
      tensor_line(sink, catalog, selected, aliases);
      if (chunks) chunk_lines(sink, catalog, catalog.tensors[selected.source], "\t");
    }
  }
  for (const SelectedObject& object : selection.objects) object_line(sink, catalog, object, session.out_is_terminal);
}

}  // namespace shard::app
