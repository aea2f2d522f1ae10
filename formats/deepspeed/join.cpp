#include "formats/deepspeed/join.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/deepspeed/join_rules.h"
#include "formats/deepspeed/state_values.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/first_names.h"

namespace shard::deepspeed {

namespace {

/// A range of a rank's part along the rule's dimension, and its offset in the whole parameter.
struct Stretch {
  std::int64_t begin, end, to;
};

class Join {
 public:
  Join(Catalog& catalog, const ModelStates& model, const std::vector<RankEntries>& ranks, const Value& info)
      : catalog_(catalog), builder_(catalog), arena_(*catalog.arena), model_(model), ranks_(ranks), rules_(info) {}

  void run() {
    std::vector<HashMap<std::string_view, const Tensor*>> by_name(ranks_.size());
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (const Tensor& tensor : ranks_[rank].tensors) by_name[rank][tensor.name] = &tensor;
      if (ranks_[rank].tensors.size() != ranks_.front().tensors.size()) throw other_names(rank);
    }
    old_ = std::exchange(catalog_.chunks, {});
    keep_others();
    for (const Tensor& first : ranks_.front().tensors) {
      std::vector<const Tensor*> parts;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        const Tensor* const* const part = by_name[rank].find(first.name);
        if (part == nullptr) throw other_names(rank).of_tensor(first.name);
        parts.push_back(*part);
      }
      join(parts);
    }
    number_ranks();
    if (buffers_.count() > 0) {
      catalog_.warnings.push_back(
          fmt::format("buffers are read as equal on all model-parallel ranks: {}", buffers_.text()));
    }
  }

 private:
  static Error other_names(std::size_t rank) {
    return Error(ErrorCode::kUnsupported, "cannot join the files of several model-parallel ranks")
        .because(fmt::format("model-parallel rank {} has other tensors than rank 0", rank));
  }

  Error does_not_fit(const Tensor& tensor) const {
    Error error(ErrorCode::kCorruption,
                fmt::format("the parts of '{}' on the model-parallel ranks do not fit together", tensor.name));
    error.of_tensor(tensor.name).of_kind(FindingKind::kShapeMismatch);
    return error.found(to_string(tensor.shape));
  }

  /// Keeps the chunks of tensors inside objects.
  void keep_others() {
    for (std::uint32_t i = 0; i < catalog_.tensors.size(); ++i) {
      const std::span<const Chunk> chunks = old_chunks(catalog_.tensors[i]);
      builder_.resume(i);
      for (const Chunk& chunk : chunks) builder_.add_chunk(chunk);
    }
  }

  JoinRule rule_of(const Tensor& tensor) {
    const bool is_state = tensor.path.size() == 4;  // optimizer.state.NAME.STATE
    const std::string_view name = is_state ? tensor.path[2].key() : tensor.name;
    if (model_.buffers.contains(name)) {
      buffers_.add(name);
      return {JoinRule::Kind::kReplicated};
    }
    const std::string_view* const real = model_.shared.find(name);
    return rules_.rule_for(real != nullptr ? *real : name);
  }

  void join(const std::vector<const Tensor*>& parts) {
    const Tensor& first = *parts.front();
    const JoinRule rule = rule_of(first);
    for (const Tensor* part : parts) {
      if (part->shape != first.shape || part->dtype != first.dtype) throw does_not_fit(*part);
    }
    builder_.begin(first);
    if (rule.kind == JoinRule::Kind::kReplicated || parts.size() == 1) {
      for (const Tensor* part : parts) {
        for (const Chunk& chunk : old_chunks(*part)) builder_.add_chunk(chunk);
      }
    } else {
      builder_.tensor().shape = whole_shape(first, rule);
      for (std::size_t rank = 0; rank < parts.size(); ++rank) place(*parts[rank], rule, rank);
    }
    if (rule.rows) cut_rows(*rule.rows);
  }

  std::span<const Chunk> old_chunks(const Tensor& tensor) const {
    return std::span(old_).subspan(tensor.first_chunk, tensor.chunk_count);
  }

  Dims whole_shape(const Tensor& part, const JoinRule& rule) const {
    if (rule.dim >= part.shape.size()) throw does_not_fit(part);
    std::vector<std::int64_t> shape(part.shape.begin(), part.shape.end());
    std::int64_t& size = shape[static_cast<std::size_t>(rule.dim)];
    size = checked_mul(size, std::ssize(ranks_));
    return arena_.dims(shape);
  }

  /// The ranges of rank `rank`'s part, in order.
  std::vector<Stretch> stretches(const Tensor& part, const JoinRule& rule, std::size_t rank) const {
    const std::int64_t ranks = std::ssize(ranks_), own = part.shape[rule.dim], number = static_cast<std::int64_t>(rank);
    std::vector<std::int64_t> segments = rule.segments;
    if (rule.is_halved) {
      if (own % 2 != 0) throw does_not_fit(part);
      segments.assign(2, own / 2 * ranks);
    }
    if (segments.empty()) return {{0, own, number * own}};
    std::vector<Stretch> all;
    std::int64_t begin = 0, to = 0;
    for (const std::int64_t segment : segments) {
      if (segment % ranks != 0 || segment / ranks > own - begin) throw does_not_fit(part);
      all.push_back({begin, begin + segment / ranks, to + number * (segment / ranks)});
      begin += segment / ranks;
      to += segment;
    }
    if (begin != own) throw does_not_fit(part);
    return all;
  }

  void place(const Tensor& part, const JoinRule& rule, std::size_t rank) {
    const auto d = static_cast<std::size_t>(rule.dim);
    for (const Stretch& stretch : stretches(part, rule, rank)) {
      for (const Chunk& chunk : old_chunks(part)) {
        const std::int64_t offset = chunk.offsets[rule.dim], end = offset + chunk.sizes[rule.dim];
        const std::int64_t from = std::max(offset, stretch.begin), till = std::min(end, stretch.end);
        const bool is_empty_part = stretch.begin == stretch.end || is_empty(chunk.sizes);
        if (from >= till && !is_empty_part) continue;
        std::vector<std::int64_t> offsets(chunk.offsets.begin(), chunk.offsets.end());
        std::vector<std::int64_t> sizes(chunk.sizes.begin(), chunk.sizes.end());
        offsets[d] = stretch.to + from - stretch.begin;
        sizes[d] = std::max<std::int64_t>(till - from, 0);
        builder_.add_chunk(chunk.stored, offsets, sizes, chunk.strides,
                           chunk.first + (from - offset) * chunk.strides[rule.dim]);
      }
    }
  }

  /// Drops the rows from `rows` on from the last tensor.
  void cut_rows(std::int64_t rows) {
    Tensor& whole = builder_.tensor();
    if (whole.shape.size() == 0 || rows > whole.shape[0]) throw does_not_fit(whole);
    std::vector<std::int64_t> shape(whole.shape.begin(), whole.shape.end());
    shape[0] = rows;
    whole.shape = arena_.dims(shape);
    const std::vector<Chunk> chunks(catalog_.chunks.begin() + whole.first_chunk, catalog_.chunks.end());
    catalog_.chunks.resize(whole.first_chunk);
    whole.chunk_count = 0;
    for (const Chunk& chunk : chunks) {
      if (chunk.offsets[0] >= rows && rows > 0) continue;
      std::vector<std::int64_t> sizes(chunk.sizes.begin(), chunk.sizes.end());
      sizes[0] = std::clamp<std::int64_t>(rows - chunk.offsets[0], 0, sizes[0]);
      std::vector<std::int64_t> offsets(chunk.offsets.begin(), chunk.offsets.end());
      if (rows == 0) offsets[0] = 0;
      builder_.add_chunk(chunk.stored, offsets, sizes, chunk.strides, chunk.first);
    }
  }

  void number_ranks() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::size_t end = rank + 1 < ranks_.size() ? ranks_[rank + 1].first_stored : catalog_.stored.size();
      for (std::size_t i = ranks_[rank].first_stored; i < end; ++i) {
        std::int32_t& number = catalog_.stored[i].rank;
        if (number >= 0) number = number * static_cast<std::int32_t>(ranks_.size()) + static_cast<std::int32_t>(rank);
      }
    }
  }

  Catalog& catalog_;
  CatalogBuilder builder_;
  Arena& arena_;
  const ModelStates& model_;
  const std::vector<RankEntries>& ranks_;
  JoinRules rules_;
  std::vector<Chunk> old_;
  FirstNames buffers_;
};

/// Null if there is none.
const Value* info_of(const ModelStates& model) {
  const Value* const info = find_value(*model.root, "universal_checkpoint_info");
  return info != nullptr && is_mapping(*info) ? info : nullptr;
}

}  // namespace

bool holds_rules(const ModelStates& model) { return info_of(model) != nullptr; }

void join_model_ranks(Catalog& catalog, const ModelStates& model, const std::vector<RankEntries>& ranks) {
  const Value* const info = info_of(model);
  if (info == nullptr) {
    throw Error(ErrorCode::kUnsupported, "cannot join the files of several model-parallel ranks")
        .in_file(catalog.files[model.file].path)
        .because("it has no universal_checkpoint_info, which says how");
  }
  Join(catalog, model, ranks, *info).run();
  if (ranks.size() > 1) catalog.warnings.emplace_back("objects are those of model-parallel rank 0");
}

}  // namespace shard::deepspeed
