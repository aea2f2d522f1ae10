#include "apps/shardctl/render_inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "apps/shardctl/inspect_numbers.h"
#include "apps/shardctl/value_text.h"

namespace shard::app {
namespace {

constexpr std::size_t kObjectPreview = 200;

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

/// "4 chunks along dim 0, ranks 0-3", or empty for a tensor in one piece.
std::string cut_text(const Catalog& catalog, const Tensor& tensor) {
  if (tensor.chunk_count == 1) return {};
  std::string dims;
  for (int d = 0; d < tensor.shape.size(); ++d) {
    const auto chunks = catalog.chunks_of(tensor);
    const bool cut = std::any_of(chunks.begin(), chunks.end(),
                                 [&](const Chunk& chunk) { return chunk.sizes[d] != tensor.shape[d]; });
    if (cut) dims += fmt::format("{}{}", dims.empty() ? "" : ",", d);
  }
  std::int32_t low = -1, high = -1;
  for (const Chunk& chunk : catalog.chunks_of(tensor)) {
    const std::int32_t rank = catalog.stored[chunk.stored].rank;
    low = low < 0 ? rank : std::min(low, rank);
    high = std::max(high, rank);
  }
  std::string text = fmt::format("{} {}", tensor.chunk_count, dims.empty() ? "copies" : "chunks");
  if (!dims.empty()) text += " along dim " + dims;
  if (low >= 0) text += low == high ? fmt::format(", rank {}", low) : fmt::format(", ranks {}-{}", low, high);
  return text;
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

constexpr std::size_t kColumns = 6;
using Row = std::array<std::string, kColumns>;

Row row_of(const Catalog& catalog, const SelectedTensor& selected, const Aliases& aliases) {
  const Tensor& tensor = catalog.tensors[selected.source];
  std::string note = cut_text(catalog, tensor);
  if (const auto first = aliases.first_of(selected)) {
    const std::string alias = "same as " + printable(*first);
    note = note.empty() ? alias : note + ", " + alias;
  }
  if (tensor.rank >= 0) note += fmt::format("{}of rank {}", note.empty() ? "" : ", ", tensor.rank);
  const std::int64_t bytes = packed_bytes(element_count(tensor.shape), selected.dtype);
  return {printable(selected.name), std::string(dtype_name(selected.dtype)), shape_text(tensor.shape),
          std::to_string(bytes),    printable(file_text(catalog, tensor)),   note};
}

void tensor_table(TextSink& sink, const Catalog& catalog, const Selection& selection, const Aliases& aliases) {
  std::array<std::size_t, kColumns> widths{};
  for (const SelectedTensor& selected : selection.tensors) {
    const Row row = row_of(catalog, selected, aliases);
    for (std::size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const SelectedTensor& selected : selection.tensors) {
    const Row row = row_of(catalog, selected, aliases);
    std::string line;
    for (std::size_t i = 0; i < kColumns; ++i) {
      if (i == 3) {  // Bytes: to the right.
        line += fmt::format("{:>{}}  ", row[i], widths[i]);
      } else {
        line += fmt::format("{:<{}}  ", row[i], widths[i]);
      }
    }
    line.erase(line.find_last_not_of(' ') + 1);
    sink.add(line);
    sink.add('\n');
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
  const bool simple = tensor.chunk_count == 1 && tensor.rank < 0 && !aliases.first_of(selected);
  if (simple) {
    const Chunk& chunk = catalog.chunks[tensor.first_chunk];
    add_printable(sink, catalog.files[catalog.storages[catalog.stored[chunk.stored].storage].file].path);
    sink.add("\t\n");
    return;
  }
  const Row row = row_of(catalog, selected, aliases);
  sink.add(row[4]);
  sink.add('\t');
  sink.add(row[5]);
  sink.add('\n');
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
  if (object.rank >= 0) sink.add(fmt::format("{}of rank {}", gap, object.rank));
  sink.add('\n');
}

std::string plural(std::size_t count, std::string_view word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
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
  if (catalog.world_size)
    first += fmt::format(", written by {}", plural(static_cast<std::size_t>(*catalog.world_size), "rank"));
  sink.add(first);
  sink.add(fmt::format("\n{}, {}, {} in {}", plural(selection.tensors.size(), "tensor"),
                       plural(selection.objects.size(), "object"), exact_bytes(sum.logical_bytes),
                       plural(catalog.files.size(), "file")));
  if (sum.stored_bytes != sum.logical_bytes) sink.add(fmt::format(", {} stored", exact_bytes(sum.stored_bytes)));
  sink.add('\n');
}

}  // namespace

void render_text(const Session& session, const OpenSource& source, const Selection& selection) {
  const Catalog& catalog = source.catalog();
  const Aliases aliases(catalog, selection);
  TextSink sink(session.out);
  summary(sink, source, selection);
  if (session.out_is_terminal) {
    tensor_table(sink, catalog, selection, aliases);
  } else {
    for (const SelectedTensor& tensor : selection.tensors) tensor_line(sink, catalog, tensor, aliases);
  }
  for (const SelectedObject& object : selection.objects) object_line(sink, catalog, object, session.out_is_terminal);
}

}  // namespace shard::app
