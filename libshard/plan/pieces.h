/// \file
/// The pieces of units: taken from catalogs, and made simpler where their cuts allow. For libshard/plan and
/// libshard/exec.
#pragma once

#include <string_view>
#include <vector>

#include "libshard/plan/plan.h"

namespace shard {

/// Appends the non-empty chunks of a source tensor; of replicas (equal boxes) the first, which is the lowest rank's.
void append_source_pieces(const Catalog& catalog, const Tensor& tensor, std::vector<Piece>& out);
/// Appends the non-empty chunks of a target tensor, replicas too.
void append_target_pieces(const Catalog& catalog, const Tensor& tensor, std::vector<Piece>& out);

/// Of a piece what lies in `part`. \pre `part` is inside the piece
Piece part_of(Arena& arena, const Piece& piece, const Box& part);
/// Of the target's pieces what these source pieces fill; sorted. \pre both are sorted, `from` has its `reach`
std::vector<Piece> parts_filled(Arena& arena, std::span<const Piece> to, std::span<const Piece> from);
/// The smallest box around pieces. \pre there is one
Box bounding_box(std::span<const Piece> pieces);
/// Keeps of pieces[begin..] what lies in `box`, counted from its corner.
void crop(Arena& arena, const Box& box, std::vector<Piece>& pieces, std::size_t begin);

/// Makes a line of elements of `shape` and its pieces where each piece is a run of whole rows, stored row-major.
/// \returns false, and changes nothing, where one is not.
bool flatten(Arena& arena, Dims& shape, std::span<Piece> from, std::span<Piece> to);

/// Turns elements of less than a byte, four in three bytes (float6), into bytes: shape and pieces.
/// \throws Error kUnsupported  a cut inside a byte.
void count_in_bytes(Arena& arena, std::string_view tensor, Dims& shape, std::span<Piece> from, std::span<Piece> to);

/// Turns a line of elements of `element_bytes` each into one of bytes.
void scale_line(Arena& arena, Dims& shape, std::span<Piece> from, std::span<Piece> to, std::int64_t element_bytes);

/// How many pairs of a source and a target piece meet. \pre both are sorted and have their `reach`.
/// Cost: n log n where the source pieces form a grid or a line, which is what layouts make; else by candidates.
std::int64_t count_overlaps(std::span<const Piece> from, std::span<const Piece> to);

}  // namespace shard
