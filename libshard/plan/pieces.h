/// \file Collects the pieces of units from catalogs, and simplifies pieces if possible. Inside libshard/plan and
///   libshard/exec only.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "libshard/plan/plan.h"

namespace shard {

/// Appends the non-empty chunks of a tensor, including replicas (equal boxes), sorted by offsets and rank.
void append_pieces(const Catalog& catalog, const Tensor& tensor, std::vector<Piece>& out);
/// Removes replicas from pieces[begin..]. Keeps the one that `choose` selects, or else the first (the lowest rank's).
/// \pre they are sorted
void choose_replicas(std::vector<Piece>& pieces, std::size_t begin,
                     const std::function<std::size_t(std::span<const Piece>)>& choose = {});

/// The part of a piece that `part` covers. \pre `part` is inside the piece
Piece part_of(Arena& arena, const Piece& piece, const Box& part);
/// The parts of the target's pieces that these source pieces fill, sorted. \pre both are sorted, and `from` has its
/// running ends
std::vector<Piece> parts_filled(Arena& arena, std::span<const Piece> to, std::span<const Piece> from);
/// The smallest box that contains all pieces. \pre there is at least one
Box bounding_box(std::span<const Piece> pieces);
/// Reduces pieces[begin..] to their parts inside `box`, with offsets relative to its corner.
void crop(Arena& arena, const Box& box, std::vector<Piece>& pieces, std::size_t begin);

/// Flattens `shape` and its pieces to one dimension if every piece is a run of whole rows in row-major order.
/// \returns false, and changes nothing, if a piece is not.
bool flatten(Arena& arena, Dims& shape, std::span<Piece> from, std::span<Piece> to);

/// Converts a shape and its pieces from elements that share bytes (float6) to bytes.
/// \throws Error kUnsupported  a piece begins or ends inside a block.
void count_in_bytes(Arena& arena, std::string_view tensor, const DTypeBlock& block, Dims& shape, std::span<Piece> from,
                    std::span<Piece> to);

/// Orders the dimensions of a unit that reads streams by decoding order. The dimensions that separate its source pieces
/// come first, so that one stream ends before the next begins. The others follow by the strides of the first piece.
/// Pieces stay sorted.
void order_as_stored(Arena& arena, Dims& shape, std::span<Piece> from, std::span<Piece> to);

/// Converts a line of elements of `element_bytes` each into a line of bytes.
void scale_line(Arena& arena, Dims& shape, std::span<Piece> from, std::span<Piece> to, std::int64_t element_bytes);

}  // namespace shard
