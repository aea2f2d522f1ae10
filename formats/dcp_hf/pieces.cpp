#include "formats/dcp_hf/pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::dcp_hf {

namespace {

bool is_origin(Dims offsets) {
  return std::ranges::all_of(offsets, [](std::int64_t offset) { return offset == 0; });
}

}  // namespace

void PieceTable::begin_file(std::uint32_t file) {
  file_ = file;
  file_begin_ = pieces_.size();
}

/// The numbers of names stay; names without pieces become no tensors.
void PieceTable::drop_file() { pieces_.resize(file_begin_); }

void PieceTable::fail(std::string_view name, FindingKind kind, const std::string& what) const {
  throw Error(ErrorCode::kCorruption, what).in_file(catalog_.files[file_].path).of_tensor(name).of_kind(kind);
}

/// A name occurs in many files, so it is copied to the arena once and then known by its number.
std::uint32_t PieceTable::number_of(std::string_view name) {
  if (const std::uint32_t* known = numbers_.find(name)) return *known;
  const auto number = static_cast<std::uint32_t>(names_.size());
  names_.push_back(catalog_.arena->copy(name));
  last_piece_.push_back(kNoIndex);
  numbers_.try_emplace(names_.back(), number);
  return number;
}

/// The piece of the current file with this key, or null.
PieceTable::Piece* PieceTable::piece_here(std::uint32_t key) {
  const std::size_t last = last_piece_[key];
  // After drop_file the slot may contain the piece of a different key.
  if (last < file_begin_ || last >= pieces_.size() || pieces_[last].key != key) return nullptr;
  return &pieces_[last];
}

PieceTable::Piece& PieceTable::need_here(std::string_view key, const char* what) {
  const std::uint32_t* number = numbers_.find(key);
  Piece* piece = number == nullptr ? nullptr : piece_here(*number);
  if (piece == nullptr) {
    fail(key, FindingKind::kIndexMismatch, fmt::format("{} names '{}', which the file does not contain", what, key));
  }
  return *piece;
}

/// A key is the name in the header. The name of the tensor is the same until DCP_SHARDING_INFO states another.
void PieceTable::add(const safetensors::HeaderEntry& entry) {
  const std::uint32_t key = number_of(entry.name);
  if (piece_here(key) != nullptr) {
    fail(entry.name, FindingKind::kDuplicateName, fmt::format("tensor '{}' appears twice", entry.name));
  }
  last_piece_[key] = static_cast<std::uint32_t>(pieces_.size());
  Piece piece;
  piece.key = piece.name = key;
  piece.file = file_;
  piece.sizes = catalog_.arena->dims(entry.shape);
  piece.place = entry.offset;
  piece.bytes = entry.bytes;
  piece.dtype = entry.dtype;
  pieces_.push_back(piece);
}

void PieceTable::set_sharding(const safetensors::ShardingEntry& entry) {
  Piece& piece = need_here(entry.key, "DCP_SHARDING_INFO");
  if (piece.has_offsets) {
    fail(entry.key, FindingKind::kDuplicateName, fmt::format("DCP_SHARDING_INFO names '{}' twice", entry.key));
  }
  piece.name = number_of(entry.tensor);
  if (std::ssize(entry.offsets) != piece.sizes.size()) {
    fail(entry.tensor, FindingKind::kShapeMismatch,
         fmt::format("tensor '{}' of shape {} has {} saved_offsets", entry.tensor, to_string(piece.sizes),
                     entry.offsets.size()));
  }
  for (int d = 0; d < piece.sizes.size(); ++d) {
    try {
      checked_add(entry.offsets[static_cast<std::size_t>(d)], piece.sizes[d]);
    } catch (Error& error) {
      throw Error(error.in_file(catalog_.files[file_].path).of_tensor(entry.tensor).of_kind(FindingKind::kOutOfBounds));
    }
  }
  piece.offsets = catalog_.arena->dims(entry.offsets);
  piece.has_offsets = true;
  if (entry.whole_shape) set_shape(piece, *entry.whole_shape, "global_shape");
}

void PieceTable::set_whole(std::string_view key, std::span<const std::int64_t> shape) {
  Piece& piece = need_here(key, "shardctl.shapes");
  if (std::exchange(piece.is_recorded, true)) {
    fail(key, FindingKind::kDuplicateName, fmt::format("shardctl.shapes names '{}' twice", key));
  }
  set_shape(piece, shape, "shardctl.shapes");
}

void PieceTable::set_shape(Piece& piece, std::span<const std::int64_t> shape, const char* what) {
  const std::string_view name = names_[piece.name];
  if (std::ssize(shape) != piece.sizes.size()) {
    fail(name, FindingKind::kShapeMismatch,
         fmt::format("tensor '{}' has {} dimensions here, {} in {}", name, piece.sizes.size(), shape.size(), what));
  }
  const Dims whole = catalog_.arena->dims(shape);
  if (piece.has_whole && piece.whole != whole) {
    fail(name, FindingKind::kShapeMismatch,
         fmt::format("tensor '{}' is of shape {} by {}, and of {} by global_shape", name, to_string(whole), what,
                     to_string(piece.whole)));
  }
  piece.whole = whole;
  piece.has_whole = true;
}

/// Without a recorded shape, a piece at the origin is a whole tensor, and any other piece is an error. Files of torch
/// alone record no shapes; then the pieces' ends give the shape.
void PieceTable::end_file(bool recorded) {
  for (Piece& piece : std::span(pieces_).subspan(file_begin_)) {
    const std::string_view name = names_[piece.name];
    if (!piece.has_offsets) {
      fail(name, FindingKind::kIndexMismatch, fmt::format("DCP_SHARDING_INFO lacks tensor '{}' of the header", name));
    }
    if (recorded && !piece.has_whole) {
      if (!is_origin(piece.offsets)) {
        fail(name, FindingKind::kIndexMismatch,
             fmt::format("tensor '{}' is a piece at {}, and shardctl.shapes lacks it", name, to_string(piece.offsets)));
      }
      piece.whole = piece.sizes;
      piece.has_whole = true;
    }
    if (piece.has_whole) check_bounds(piece);
  }
}

void PieceTable::check_bounds(const Piece& piece) const {
  for (int d = 0; d < piece.sizes.size(); ++d) {
    if (piece.offsets[d] + piece.sizes[d] <= piece.whole[d]) continue;
    const std::string_view name = names_[piece.name];
    fail(name, FindingKind::kOutOfBounds,
         fmt::format("tensor '{}': piece at {} of {} in a tensor of {}", name, to_string(piece.offsets),
                     to_string(piece.sizes), to_string(piece.whole)));
  }
}

/// Groups the pieces by name with a counting sort, so a tensor has its pieces in the order of the files.
void PieceTable::build(Findings& findings) {
  std::vector<std::uint32_t> begin(names_.size() + 1), order(pieces_.size());
  for (const Piece& piece : pieces_) ++begin[piece.name + 1];
  for (std::size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
  std::vector<std::uint32_t> next(begin.begin(), begin.end() - 1);
  for (std::uint32_t i = 0; i < pieces_.size(); ++i) order[next[pieces_[i].name]++] = i;
  catalog_.tensors.reserve(names_.size());
  catalog_.chunks.reserve(pieces_.size());
  catalog_.stored.reserve(pieces_.size());
  catalog_.storages.reserve(pieces_.size());
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const auto pieces = std::span(std::as_const(order)).subspan(begin[i], begin[i + 1] - begin[i]);
    if (!pieces.empty() && check_alike(pieces, findings)) add_tensor(names_[i], pieces, findings);
  }
}

/// Reports the first contradiction between pieces of one tensor. False if there is one; the tensor is then skipped.
bool PieceTable::check_alike(std::span<const std::uint32_t> pieces, Findings& findings) const {
  const Piece& first = pieces_[pieces.front()];
  const std::string_view name = names_[first.name];
  const Piece* const whole = find_whole(pieces);
  const auto report = [&](const Piece& piece, FindingKind kind, const char* what, const std::string& expected,
                          const std::string& found, const Piece& other) {
    const std::string &here = catalog_.files[piece.file].path, &there = catalog_.files[other.file].path;
    findings.report(Error(ErrorCode::kCorruption,
                          fmt::format("tensor '{}' has {} {} here and {} in {}", name, what, found, expected, there))
                        .in_file(here)
                        .of_tensor(name)
                        .expected(expected)
                        .found(found)
                        .of_kind(kind));
  };
  for (const std::uint32_t i : pieces.subspan(1)) {
    const Piece& piece = pieces_[i];
    if (piece.dtype != first.dtype) {
      report(piece, FindingKind::kDtypeMismatch, "the dtype", std::string(dtype_name(first.dtype)),
             std::string(dtype_name(piece.dtype)), first);
      return false;
    }
    if (piece.sizes.size() != first.sizes.size()) {
      report(piece, FindingKind::kShapeMismatch, "a number of dimensions of", std::to_string(first.sizes.size()),
             std::to_string(piece.sizes.size()), first);
      return false;
    }
    if (piece.has_whole && piece.whole != whole->whole) {
      report(piece, FindingKind::kShapeMismatch, "the whole shape", to_string(whole->whole), to_string(piece.whole),
             *whole);
      return false;
    }
  }
  return true;
}

const PieceTable::Piece* PieceTable::find_whole(std::span<const std::uint32_t> pieces) const {
  const auto found = std::ranges::find_if(pieces, [this](std::uint32_t i) { return pieces_[i].has_whole; });
  return found == pieces.end() ? nullptr : &pieces_[*found];
}

/// Pieces without elements may be past the end, so they count only if all pieces are empty.
Dims PieceTable::shape_of(std::span<const std::uint32_t> pieces) const {
  const Piece& first = pieces_[pieces.front()];
  if (const Piece* const piece = find_whole(pieces); piece != nullptr) return piece->whole;
  if (pieces.size() == 1 && is_origin(first.offsets)) return first.sizes;
  const bool all_empty = std::ranges::all_of(pieces, [this](std::uint32_t i) { return is_empty(pieces_[i].sizes); });
  std::array<std::int64_t, kMaxDims> ends{};
  for (const std::uint32_t i : pieces) {
    const Piece& piece = pieces_[i];
    if (!all_empty && is_empty(piece.sizes)) continue;
    for (int d = 0; d < piece.sizes.size(); ++d) {
      std::int64_t& end = ends[static_cast<std::size_t>(d)];
      end = std::max(end, piece.offsets[d] + piece.sizes[d]);
    }
  }
  return catalog_.arena->dims(std::span(ends).first(static_cast<std::size_t>(first.sizes.size())));
}

void PieceTable::add_tensor(std::string_view name, std::span<const std::uint32_t> pieces, Findings& findings) {
  builder_.begin(name, {}, pieces_[pieces.front()].dtype, shape_of(pieces));
  for (const std::uint32_t i : pieces) add_chunk(pieces_[i], findings);
}

void PieceTable::add_chunk(const Piece& piece, Findings& findings) {
  const File& file = catalog_.files[piece.file];
  const std::uint32_t storage = builder_.add_storage({.offset = piece.place, .bytes = piece.bytes, .file = piece.file});
  if (piece.bytes > 0 && piece.place + piece.bytes > file.bytes) {
    findings.lose_storage(storage, Error(ErrorCode::kCorruption, "the file ends before it does"));
  }
  const std::uint32_t stored = builder_.add_row_major(storage, piece.sizes, piece.dtype, file.rank);
  builder_.add_chunk({piece.offsets, piece.sizes, catalog_.stored[stored].strides, 0, stored});
}

}  // namespace shard::dcp_hf
