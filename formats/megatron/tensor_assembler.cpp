#include "formats/megatron/tensor_assembler.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/error.h"

namespace shard::megatron {

std::string TensorAssembler::counted(std::string_view name, std::int64_t stage, std::int64_t chunk) const {
  const std::optional<std::int64_t> layer = layer_in(name);
  if (!layer) return std::string(name);
  return with_layer(name, *layer + layers_of(catalog_, save_, stage, chunk).begin);
}

Meaning TensorAssembler::meaning(std::string_view name, std::int64_t stage, std::int64_t chunk) const {
  const Arguments& arguments = save_.arguments;
  Meaning meaning = meaning_of(counted(name, stage, chunk), arguments.gated);
  if (arguments.tied && meaning.name == "output_layer.weight") meaning.name = "embedding.word_embeddings.weight";
  if (meaning.cut || arguments.tensor == 1) return meaning;
  const ChunkStates& held = save_.ranks_of(stage).front().chunks[static_cast<std::size_t>(chunk)];
  meaning.cut = cut_of_down_projection(name, *held.tensors.find(name));
  if (meaning.cut) return meaning;
  throw Error(ErrorCode::kUnsupported, fmt::format("cannot join the tensor-parallel parts of '{}'", name))
      .in_file(catalog_.files[save_.ranks_of(stage).front().file].path)
      .of_tensor(name)
      .because("it is unknown whether ranks have parts or copies of it");
}

std::optional<Cut> TensorAssembler::cut_of_down_projection(std::string_view name, const TensorView& view) const {
  std::int64_t whole_rows = 0;
  if (name.ends_with(".linear_q_down_proj.weight")) whole_rows = save_.arguments.query_rows;
  if (name.ends_with(".linear_kv_down_proj.weight")) whole_rows = save_.arguments.key_rows;
  if (whole_rows == 0 || view.shape.empty()) return std::nullopt;
  return cut_by_rows(view.shape[0], whole_rows, save_.arguments.tensor);
}

std::uint32_t TensorAssembler::store(std::size_t rank, std::uint32_t file, const TensorView& view) {
  StoredTensor stored = torch_save::stored_tensor(view, files_.storage_of(file, view));
  stored.rank = static_cast<std::int32_t>(rank);
  return builder_.add_stored(stored);
}

void TensorAssembler::add(std::string_view name, Path path, const Meaning& meaning, std::size_t rank,
                          std::uint32_t stored, const Part& part) {
  const RankStates& states = save_.ranks[rank];
  try {
    if (meaning.experts != Meaning::Experts::kNone) return add_experts(name, path, meaning, states.rank, stored, part);
    const TensorRank tensor{states.rank.tensor, save_.arguments.tensor};
    add_pieces(name, path, stored, pieces_of(part, meaning.cut.value_or(Cut::kNot), tensor));
  } catch (Error& error) {
    throw error.in_file(catalog_.files[states.file].path).of_tensor(name);
  }
}

void TensorAssembler::add_state(std::string_view state, const Meaning& meaning, std::size_t rank, std::uint32_t stored,
                                const Part& part) {
  const std::string_view name = arena_.copy(fmt::format("optimizer.state.{}.{}", state, meaning.name));
  const std::span<PathPart> container = arena_.array<PathPart>(3);
  container[0] = PathPart::of_key("optimizer");
  container[1] = PathPart::of_key("state");
  container[2] = PathPart::of_key(state);
  const std::size_t head = name.size() - meaning.name.size();
  add(name, Path(container, PathPart::of_key(name.substr(head))), meaning, rank, stored, part);
}

void TensorAssembler::add_experts(std::string_view name, Path path, const Meaning& meaning, const Coordinates& rank,
                                  std::uint32_t stored, const Part& part) {
  const std::int64_t experts = save_.arguments.experts, here = experts / save_.arguments.expert;
  if (meaning.expert >= here) {
    throw Error(ErrorCode::kCorruption, "a rank has fewer experts according to the arguments")
        .of_kind(FindingKind::kIndexMismatch)
        .expected(fmt::format("less than {}", here))
        .found(meaning.expert);
  }
  const Cut cut = meaning.cut.value_or(Cut::kNot);
  const TensorRank tensor{rank.tensor, save_.arguments.tensor};
  std::int64_t expert = rank.expert * here + meaning.expert;
  if (meaning.experts == Meaning::Experts::kOne) {
    return add_pieces(name, path, stored, pieces_of_expert(part, cut, tensor, expert, experts));
  }
  arena_.charge(Charge::kChunks, here);
  for (const Part& each : packed_experts(part, meaning.experts == Meaning::Experts::kFirstPacked, here)) {
    add_pieces(name, path, stored, pieces_of_expert(each, cut, tensor, expert++, experts));
  }
}

void TensorAssembler::add_pieces(std::string_view name, Path path, std::uint32_t stored, const Pieces& pieces) {
  const DType dtype = catalog_.stored[stored].dtype;
  Whole& whole = wholes_.try_emplace(name, Whole{path, arena_.dims(pieces.whole), dtype}).value;
  if (whole.dtype != dtype || !std::ranges::equal(whole.shape.span(), pieces.whole)) {
    throw Error(ErrorCode::kCorruption, fmt::format("ranks store '{}' with different shapes or dtypes", name))
        .of_kind(FindingKind::kShapeMismatch)
        .expected(fmt::format("{} {}", dtype_name(whole.dtype), to_string(whole.shape)));
  }
  for (const Piece& piece : pieces.pieces) {
    arena_.charge(Charge::kChunks);
    whole.chunks.push_back(
        {arena_.dims(piece.offsets), arena_.dims(piece.sizes), arena_.dims(piece.strides), piece.first, stored});
  }
}

void TensorAssembler::finish() {
  for (const auto& [name, whole] : wholes_.entries()) {
    builder_.begin(name, whole.path, whole.dtype, whole.shape);
    for (const Chunk& chunk : whole.chunks) builder_.add_chunk(chunk);
  }
}

}  // namespace shard::megatron
