#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "libshard/compute/formula_draft.h"
#include "libshard/core/box.h"
#include "libshard/core/bytes.h"
#include "libshard/core/checked.h"
#include "libshard/core/json_builder.h"

namespace shard {

void make_bitsandbytes4(FormulaDraft& draft) {
  draft.need(draft.parts.description, "its description is");
  draft.need(draft.parts.book, "its code book is");
  const Bytes bytes = draft.search.read(draft.parts.description);
  const nlohmann::json facts = parse_json<nlohmann::json>(
      as_text(bytes), {}, [&](const std::string& why) { return draft.wrong(draft.parts.description, why); });
  const auto number = [&](const char* key) {
    const auto found = facts.is_object() ? facts.find(key) : facts.end();
    if (found == facts.end() || !found->is_number_integer() || *found < 1) {
      throw draft.wrong(draft.parts.description, fmt::format("its description has no number '{}'", key));
    }
    return found->get<std::int64_t>();
  };
  const std::int64_t block = number("blocksize");
  std::vector<std::int64_t> shape;
  if (const auto found = facts.find("shape"); found != facts.end() && found->is_array()) {
    for (const auto& each : *found) shape.push_back(each.is_number_integer() ? each.get<std::int64_t>() : -1);
  }
  if (std::ranges::any_of(shape, [](std::int64_t size) { return size < 0; })) {
    throw draft.wrong(draft.parts.description, "its description states no shape")
        .expected("a list of sizes")
        .found(to_string(shape));
  }
  const std::int64_t numbers = checked_numel(shape);
  if (shape.empty() ||
      ceil_div(numbers, 2) != checked_bytes(checked_numel(draft.weight().shape), draft.weight().dtype)) {
    throw draft.wrong(draft.parts.weight, "the stated shape does not fit the codes").expected(to_string(shape));
  }
  set_shape(draft.formula, shape);
  draft.codes.rows = 1;
  draft.codes.columns = numbers;
  draft.codes.kind = CodeKind::kBook;
  draft.codes.codes.bits = 4;
  draft.codes.codes.packing = Packing::kHighFirst;
  draft.codes.book = Leaf{draft.parts.book};
  if (checked_numel(draft.at(draft.parts.book).shape) != 16)
    throw draft.wrong(draft.parts.book, "the code book has no 16 numbers");
  draft.codes.scales.grid = {1, block};
  draft.check_count(draft.parts.scale, ceil_div(numbers, block));
  if (draft.parts.second == FormulaDraft::kNone) return;
  draft.need(draft.parts.nested_book, "the code book of its scales is");
  if (checked_numel(draft.at(draft.parts.nested_book).shape) != 256)
    throw draft.wrong(draft.parts.nested_book, "the code book has no 256 numbers");
  const std::int64_t group = number("nested_blocksize");
  draft.check_count(draft.parts.second, ceil_div(checked_numel(draft.scale().shape), group));
  const auto offset = facts.find("nested_offset");
  if (offset == facts.end() || !offset->is_number()) {
    throw draft.wrong(draft.parts.description, "its description has no number 'nested_offset'");
  }
  draft.codes.scales.nested =
      BlockScales::Nested{Leaf{draft.parts.nested_book}, Leaf{draft.parts.second}, group, offset->get<float>()};
}

void make_bitsandbytes8(FormulaDraft& draft) {
  draft.set_matrices(draft.weight().shape.span());
  if (draft.weight().shape.size() != 2) throw draft.wrong(draft.parts.weight, "the codes are not a matrix");
  if (draft.parts.layout != FormulaDraft::kNone && !draft.is_all_zero(draft.parts.layout)) {
    throw draft.unsupported("its weight_format is not 0, so the order of its codes is that of a GPU's kernels");
  }
  draft.codes.kind = CodeKind::kSigned;
  draft.codes.scales.grid = {1, std::max<std::int64_t>(1, draft.codes.columns)};
  draft.check_count(draft.parts.scale, draft.codes.rows);
  draft.codes.factor = 1.0F / 127.0F;
}

}  // namespace shard
