#include "libshard/exec/tensor_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>
#include <vector>

#include "libshard/catalog/layouts/flat_run.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/parallel.h"
#include "libshard/exec/piece_reader.h"
#include "libshard/exec/row_cuts.h"
#include "libshard/exec/runs.h"
#include "libshard/exec/scratch_tensor.h"
#include "libshard/plan/grid.h"
#include "libshard/plan/overlaps.h"
#include "libshard/plan/pieces.h"

namespace shard {

namespace {

constexpr std::int64_t kStaging = 1 << 20;
constexpr std::int64_t kLeastInParts = 8 << 20;  // Smaller reads are not divided among threads.
constexpr std::int64_t kOwnPool = 64 << 20;
constexpr std::int64_t kLeastToDecode = 1 << 20;
constexpr std::int64_t kGridPanel = 16 << 20;  // For compressed pieces: work for every thread, and fits a cache.
constexpr std::int64_t kComparedBlock = 1 << 20;
constexpr std::int64_t kLeastCopy = 1 << 20;     // The least memory for a copy in order (plan_copies).
constexpr double kShortRead = 1024;              // In bytes. If reads are shorter on average, a file is faster.
constexpr std::size_t kStreamsAtOnce = 4;        // The number of decoders that are certain to be kept (ViewCache).
constexpr std::int64_t kKeptOfStream = 4 << 20;  // Decoded bytes that a decoder certainly keeps.

/// The number of storage elements after which row-major order returns to the first one; 1 if it never does. It returns
/// at a dimension of stride 0, and has then visited the span of all dimensions inside that one.
std::int64_t repeated_span(const Piece& piece) {
  bool repeats = false;
  std::int64_t span = 1;
  for (int d = 0; d < piece.sizes.size(); ++d) {
    if (piece.sizes[d] == 1) continue;
    if (repeats) span += (piece.sizes[d] - 1) * piece.strides[d];
    repeats = repeats || piece.strides[d] == 0;
  }
  return span;
}

/// The largest number of pieces that contain a part of one index of the first dimension. Method: a sweep over the
/// pieces' begins (+1) and ends (-1) in order of index. Cost: n log n.
std::size_t most_side_by_side(std::span<const Piece> pieces) {
  if (pieces.front().sizes.size() == 0) return pieces.size();
  std::vector<std::pair<std::int64_t, int>> edges;  // At the same index, an end precedes a begin.
  for (const Piece& piece : pieces) {
    edges.emplace_back(piece.offsets[0], 1);
    edges.emplace_back(piece.offsets[0] + piece.sizes[0], -1);
  }
  std::ranges::sort(edges);
  std::size_t here = 0, most = 0;
  for (const auto& [index, step] : edges) {
    here += static_cast<std::size_t>(step);
    most = std::max(most, here);
  }
  return most;
}

/// Whether row-major order equals storage order, for elements that have separate addresses.
bool is_in_order(const Piece& piece) {
  std::int64_t last = INT64_MAX;
  for (int d = 0; d < piece.sizes.size(); ++d) {
    if (piece.sizes[d] == 1 || piece.strides[d] == 0) continue;
    if (piece.strides[d] > last) return false;
    last = piece.strides[d];
  }
  return true;
}

}  // namespace

struct TensorReader::Impl {
  Impl(const Catalog& source, const Reader& source_reader, std::uint32_t tensor_index, Progress& counters,
       Findings& findings, BufferPool* given_pool, int given_threads)
      : catalog(source),
        reader(source_reader),
        progress(counters),
        index(tensor_index),
        tensor(source.tensors[tensor_index]),
        threads(std::max(1, given_threads)),
        pool(given_pool != nullptr ? *given_pool : own_pool),
        checks(catalog, findings),
        piece_reader(catalog, reader, checks, progress, {}),
        shape(tensor.shape),
        dtype(tensor.dtype) {
    append_pieces(catalog, tensor, pieces);
    choose_replicas(pieces, 0);
    is_in_bytes = true;
    if (dtype_block(dtype).elements > 1) {
      count_in_bytes(arena, tensor.name, dtype_block(dtype), shape, pieces, {});
    } else if (flatten(arena, shape, pieces, {})) {
      scale_line(arena, shape, pieces, {}, element_bytes(dtype));
      is_line = true;
    } else {
      is_in_bytes = false;
    }
    set_running_ends(pieces);
    has_stream =
        std::ranges::any_of(pieces, [&](const Piece& piece) { return catalog.storages[piece.storage].is_stream; });
    const bool is_permuted = !is_line && !std::ranges::all_of(pieces, is_in_order);
    const auto is_repeated = [this](const Piece& piece) { return repeated_span(piece) * unit_bytes() > kKeptOfStream; };
    const bool is_to_and_fro = has_stream && !is_line &&
                               (std::ranges::any_of(pieces, is_repeated) || most_side_by_side(pieces) > kStreamsAtOnce);
    if (has_stream && !is_permuted && pieces.size() > 1) find_cuts(is_to_and_fro);
    is_scattered = is_permuted || is_to_and_fro || cuts;
  }

  /// Finds the ends of panels that split no compressed piece. All threads read such panels, and decode each piece once.
  void find_cuts(bool is_needed) {
    const RowCuts found(pieces, shape[0]);
    const std::int64_t bytes = found.widest() * row_units() * unit_bytes();
    const bool is_large = checked_numel(shape.span()) * unit_bytes() >= kLeastInParts;
    const bool is_faster = threads > 1 && is_large && bytes <= kGridPanel;
    if (bytes <= panel_room() && (is_needed || is_faster)) cuts = found;
  }

  /// The number of units per index of the first dimension.
  std::int64_t row_units() const { return checked_numel(shape.span()) / shape[0]; }

  std::int64_t unit_bytes() const { return is_in_bytes ? 1 : element_bytes(dtype); }

  /// A number of units near `bytes`, at least 1: whole rows of the inner dimensions if possible. `row` is the product
  /// of the inner dimensions that fit.
  std::int64_t rows_within(std::int64_t bytes) const {
    const std::int64_t wanted = std::max<std::int64_t>(1, bytes / unit_bytes());
    std::int64_t row = 1;
    for (int d = shape.size(); d-- > 0 && shape[d] <= wanted / row;) row *= std::max<std::int64_t>(1, shape[d]);
    return wanted / row * row;
  }

  /// Reads units [first, last), through `memory` if they are permuted.
  void read_units(std::int64_t first, std::int64_t last, std::byte* to, std::span<std::byte> memory) {
    for_each_box_of_run(shape, first, last - first, [&](auto offsets, auto sizes, std::int64_t) {
      const Box part(offsets, sizes);
      read_box(part, to, memory);
      to += part.numel() * unit_bytes();
    });
  }

  void read_from_panels(std::int64_t first, std::int64_t last, std::byte* to) {
    while (first < last) {
      if (first < panel_begin || first >= panel_end) fill_panel(first);
      const std::int64_t end = std::min(last, panel_end);
      const auto bytes = static_cast<std::size_t>((end - first) * unit_bytes());
      std::memcpy(to, panel_data + (first - panel_begin) * unit_bytes(), bytes);
      to += bytes;
      first = end;
    }
  }

  std::int64_t staging_limit() const { return std::min(threads * kStaging, panel_limit / 2); }
  std::int64_t panel_room() const { return panel_limit - staging_limit(); }
  std::int64_t panel_units() const { return rows_within(panel_room()); }

  std::int64_t panel_count() const { return ceil_div(checked_numel(shape.span()), panel_units()); }

  /// Whether panels need reads of less than kShortRead on average, as for the columns of a matrix with many rows.
  bool has_short_reads() const {
    // The sides of a box with as many units as a panel: whole inner dimensions, and a part of one.
    Numbers sides{};
    std::int64_t rest = panel_units();
    for (int d = shape.size(); d-- > 0;) {
      sides[static_cast<std::size_t>(d)] = std::clamp<std::int64_t>(rest, 1, shape[d]);
      rest /= std::max<std::int64_t>(1, shape[d]);
    }
    const double bytes = static_cast<double>(checked_numel(shape.span())) * static_cast<double>(unit_bytes());
    return estimate_reads(pieces, sides, unit_bytes(), kStaging) * kShortRead > bytes;
  }

  /// Chooses between panels and a temporary file. The file is used if a tensor has several panels, and each panel would
  /// need to decode a whole stream or to make very many reads. The file has storage order if this allows long reads,
  /// otherwise row order. If no file has room for it, panels are used.
  void choose_way() {
    is_way_chosen = true;
    const bool is_short = has_short_reads();
    if (panel_count() == 1 || cuts || !(has_stream || is_short)) return;
    const ExecuteOptions options{.threads = threads,
                                 .max_memory_bytes = std::max(panel_limit, kLeastCopy),
                                 .pool = &pool,
                                 .source_checks = &checks};
    try {
      scratch = std::make_unique<ScratchTensor>(
          catalog, reader, index, is_short ? ScratchTensor::Order::kRowMajor : ScratchTensor::Order::kAsStored,
          options);
      in_scratch = std::make_unique<TensorReader>(scratch->catalog(), *scratch, 0, progress, throwing_findings(), &pool,
                                                  threads);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kResource) throw;
      if (has_stream && panel_count() > kMostPasses) refuse_passes(checked_numel(shape.span()) * unit_bytes(), error);
    }
  }

  void fill_panel(std::int64_t begin) {
    const std::int64_t all = checked_numel(shape.span());
    const std::int64_t staging_bytes = staging_limit();
    panel_begin = panel_end = begin;
    const std::int64_t end = cuts ? cut_after(begin) : std::min(all, begin + panel_units());
    const std::int64_t bytes = (end - begin) * unit_bytes();
    const std::span<std::byte> memory = panel.ensure(bytes + std::min(staging_bytes, bytes));
    panel_data = memory.data();
    std::byte* to = panel_data;
    for_each_box_of_run(shape, begin, end - begin, [&](auto offsets, auto sizes, std::int64_t) {
      const Box part(offsets, sizes);
      const std::span<std::byte> rest = memory.subspan(static_cast<std::size_t>(bytes));
      cuts ? read_by_pieces(part, to, rest) : read_in_parts(part, to, rest);
      to += part.numel() * unit_bytes();
    });
    panel_end = end;
  }

  std::int64_t cut_after(std::int64_t unit) const {
    const std::int64_t row = row_units();
    const std::int64_t wanted = std::min(kGridPanel, panel_room()) / (row * unit_bytes());
    return cuts->after(unit / row, std::max<std::int64_t>(1, wanted)) * row;
  }

  /// Reads a box with all threads. Each of them reads some of its pieces.
  void read_by_pieces(const Box& box, std::byte* out, std::span<std::byte> memory) {
    const auto [first, last] = candidates(pieces, box);
    const std::span<const Piece> within = std::span<const Piece>(pieces).subspan(first, last - first);
    const bool is_small = box.numel() * unit_bytes() < kLeastToDecode;
    const std::size_t workers = is_small ? 1 : std::min(within.size(), static_cast<std::size_t>(threads));
    const std::size_t share = memory.size() / workers;
    std::atomic<std::size_t> begun{0};
    for_each_index(within.size(), static_cast<int>(workers), {}, [&]() -> IndexWorker {
      const auto own = std::make_shared<PieceReader>(catalog, reader, checks, progress, std::stop_token());
      return [&, own, room = memory.subspan(begun++ * share, share)](std::size_t i) {
        read_pieces(*own, box, box, within.subspan(i, 1), out, room);
      };
    });
  }

  /// Reads a box with all threads. Each of them reads a part of the dimension that is slowest in the storage. A stream
  /// has one decoder, so it is not divided.
  void read_in_parts(const Box& box, std::byte* out, std::span<std::byte> memory) {
    const auto slowest = static_cast<std::size_t>(order_of(pieces.front().strides.span())[0]);
    const std::int64_t size = box.size[slowest];
    const bool is_small = box.numel() * unit_bytes() < kLeastInParts;
    const std::int64_t parts = has_stream || is_small ? 1 : std::min<std::int64_t>(threads, size);
    const std::size_t share = memory.size() / static_cast<std::size_t>(parts);
    for_each_index(static_cast<std::size_t>(parts), static_cast<int>(parts), {}, [&]() -> IndexWorker {
      const auto own = std::make_shared<PieceReader>(catalog, reader, checks, progress, std::stop_token());
      return [&, own](std::size_t i) {
        const auto n = static_cast<std::int64_t>(i);
        Box part = box;
        part.offset[slowest] += begin_of_share(size, n, parts);
        part.size[slowest] = begin_of_share(size, n + 1, parts) - begin_of_share(size, n, parts);
        read_part(*own, box, part, out, memory.subspan(i * share, share));
      };
    });
  }

  [[noreturn]] void refuse_passes(std::int64_t bytes, const Error& no_file) const {
    throw Error(ErrorCode::kResource,
                fmt::format("cannot read tensor '{}' within {} bytes of memory", tensor.name, panel_limit))
        .of_tensor(tensor.name)
        .because(fmt::format("its {} bytes are compressed in a different order from the one needed; reading them would "
                             "take more than {} decompressions: {}",
                             bytes, kMostPasses, no_file.what()))
        .suggest(Remedy::kMoreMemory);
  }

  void read_box(const Box& box, std::byte* out, std::span<std::byte> memory) {
    read_part(piece_reader, box, box, out, memory);
  }

  /// Reads a part of `box`, which is row-major at `out`.
  void read_part(PieceReader& from, const Box& box, const Box& part, std::byte* out, std::span<std::byte> memory) {
    const auto [first, last] = candidates(pieces, part);
    read_pieces(from, box, part, std::span<const Piece>(pieces).subspan(first, last - first), out, memory);
  }

  /// Reads the data of some of the pieces.
  void read_pieces(PieceReader& from, const Box& box, const Box& part, std::span<const Piece> some, std::byte* out,
                   std::span<std::byte> memory) try {
    Numbers strides;
    const BufferBox whole = row_major_box(box, out, strides);
    for (const Piece& piece : some.size() > 1 ? some : std::span<const Piece>()) {
      const Box common = intersect(part, Box(piece.offsets, piece.sizes));
      if (!common.empty() && !from.expect(piece, common, static_cast<std::size_t>(unit_bytes()))) break;
    }
    for (const Piece& piece : some) {
      const Box common = intersect(part, Box(piece.offsets, piece.sizes));
      if (common.empty()) continue;
      from.read(piece, common, static_cast<std::size_t>(unit_bytes()), std::span(&whole, 1), memory);
    }
  } catch (Error& error) {
    error.of_tensor(tensor.name);
    throw;
  }

  const Catalog& catalog;
  const Reader& reader;
  Progress& progress;
  const std::uint32_t index;  ///< The tensor's index in the catalog.
  const Tensor& tensor;
  const int threads;
  BufferPool own_pool{kOwnPool};
  BufferPool& pool;
  Buffer panel{pool};
  const std::int64_t panel_limit = pool.limit_bytes();
  std::byte* panel_data = nullptr;
  std::int64_t panel_begin = 0, panel_end = 0;  ///< The range of units in the panel.
  Arena arena;
  SourceChecks checks;
  std::optional<RowCuts> cuts;  ///< Preferred ends of panels, if there are any.
  PieceReader piece_reader;
  std::unique_ptr<ScratchTensor> scratch;
  std::unique_ptr<TensorReader> in_scratch;  ///< Reads everything from the temporary file, once that exists.
  Dims shape;                                ///< In units, which are elements or bytes.
  DType dtype;
  bool is_in_bytes = false, is_line = false;
  bool has_stream = false;     ///< Some bytes must be decoded.
  bool is_scattered = false;   ///< A block of rows is in many places, so it is read in panels.
  bool is_way_chosen = false;  ///< choose_way was called.
  std::vector<Piece> pieces;
  std::vector<std::byte> staging;
};

TensorReader::TensorReader(const Catalog& catalog, const Reader& reader, std::uint32_t tensor, Progress& progress,
                           Findings& findings, BufferPool* pool, int threads)
    : impl_(std::make_unique<Impl>(catalog, reader, tensor, progress, findings, pool, threads)) {}

TensorReader::~TensorReader() = default;

void TensorReader::read(std::int64_t begin, std::int64_t end, std::span<std::byte> out) {
  if (begin == end) return;
  Impl& impl = *impl_;
  const std::int64_t first = impl.is_in_bytes ? checked_bytes(begin, impl.dtype) : begin;
  const std::int64_t last = impl.is_in_bytes ? checked_bytes(end, impl.dtype) : end;
  const std::int64_t unit = impl.unit_bytes();
  assert((last - first) * unit == static_cast<std::int64_t>(out.size()));
  if (impl.is_scattered && !impl.is_way_chosen) impl.choose_way();
  if (impl.in_scratch != nullptr) return impl.in_scratch->read(begin, end, out);
  if (impl.is_scattered) return impl.read_from_panels(first, last, out.data());
  // Lines are read directly into their final position. Only permuted data needs the second buffer.
  const std::int64_t staging = impl.is_line ? unit : std::min(kStaging, (last - first) * unit);
  if (static_cast<std::int64_t>(impl.staging.size()) < staging) impl.staging.resize(static_cast<std::size_t>(staging));
  impl.read_units(first, last, out.data(), impl.staging);
}

std::int64_t TensorReader::block_elements(std::int64_t bytes) const {
  const Impl& impl = *impl_;
  const DTypeBlock block = dtype_block(impl.dtype);
  const std::int64_t units = impl.rows_within(bytes);
  if (!impl.is_in_bytes) return std::max<std::int64_t>(1, units);
  return std::max<std::int64_t>(1, units / block.bytes) * block.elements;
}

std::optional<std::int64_t> first_difference(TensorReader& a, TensorReader& b, std::int64_t elements, DType dtype,
                                             const std::stop_token& stop) {
  const std::int64_t step = std::max<std::int64_t>(8, a.block_elements(kComparedBlock));
  std::vector<std::byte> of_a, of_b;
  for (std::int64_t begin = 0; begin < elements; begin += step) {
    check_stop(stop);
    const std::int64_t end = std::min(elements, begin + step);
    of_a.resize(static_cast<std::size_t>(checked_bytes(end - begin, dtype)));
    of_b.resize(of_a.size());
    a.read(begin, end, of_a);
    b.read(begin, end, of_b);
    if (of_a == of_b) continue;
    const auto at = std::ranges::mismatch(of_a, of_b).in1 - of_a.begin();
    return begin + at * (end - begin) / static_cast<std::int64_t>(of_a.size());
  }
  return std::nullopt;
}

}  // namespace shard
