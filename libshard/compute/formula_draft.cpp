#include "libshard/compute/formula_draft.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "libshard/compute/block_grid.h"
#include "libshard/compute/unknown_codes.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/exec/cast.h"

namespace shard {

namespace {

bool is_word(DType dtype) { return is_integer(dtype) && element_bytes(dtype) * 8 == kPackedWordBits; }

bool is_real(DType dtype) { return is_float(dtype) && is_castable(dtype); }

bool fits_codes(const ScaledCodes& codes, DType dtype) {
  switch (codes.kind) {
    case CodeKind::kUnsigned:
    case CodeKind::kOffset:
      return is_word(dtype);
    case CodeKind::kSigned:
      return dtype == DType::kInt8;
    case CodeKind::kFloat4:
      return dtype == DType::kUint8 || dtype == DType::kInt8 || dtype == DType::kFloat4E2m1fnX2 ||
             dtype == DType::kUint32;
    case CodeKind::kFloat8:
      return dtype_block(float8_of(dtype)).bytes == 1 && is_castable(dtype);
    case CodeKind::kBook:
      return is_integer(dtype) || is_plain_float(dtype);
    case CodeKind::kOne:
      return dtype_block(dtype).elements == 1;
  }
  return false;
}

bool fits_scales(const BlockScales& scales, DType dtype) {
  if (scales.nested || scales.are_float8) return dtype == DType::kUint8;
  if (scales.are_exponents) return dtype == DType::kUint8 || dtype == DType::kFloat8E8m0fnu;
  return is_real(dtype);
}

}  // namespace

bool describes_form(std::string_view name) {
  constexpr std::string_view kMarkOfComfy = "scaled_fp8";  // Its dtype is that of the whole checkpoint.
  return name.ends_with(".weight_format") || name.ends_with(kOfComfy) || name.ends_with(kMarkOfComfy);
}

bool are_exponents(const Tensor& scale) { return scale.dtype == DType::kUint8 || scale.dtype == DType::kFloat8E8m0fnu; }

std::optional<std::uint32_t> find_wrong_dtype(const Catalog& catalog, const ScaledCodes& codes) {
  const auto dtype_of = [&](const Leaf& leaf) { return catalog.tensors[leaf.tensor].dtype; };
  const auto is_number = [&](const std::optional<Leaf>& leaf) { return !leaf || is_real(dtype_of(*leaf)); };
  const auto is_index = [&](const std::optional<Leaf>& leaf) { return !leaf || is_integer(dtype_of(*leaf)); };
  if (!fits_codes(codes, dtype_of(codes.codes.tensor))) return codes.codes.tensor.tensor;
  if (!fits_scales(codes.scales, dtype_of(codes.scales.tensor))) return codes.scales.tensor.tensor;
  if (!is_number(codes.scales.second)) return codes.scales.second->tensor;
  if (!is_number(codes.book)) return codes.book->tensor;
  if (!is_number(codes.added)) return codes.added->tensor;
  if (codes.scales.nested) {
    for (const Leaf& leaf : {codes.scales.nested->book, codes.scales.nested->absmax}) {
      if (!is_number(leaf)) return leaf.tensor;
    }
  }
  if (codes.zeros) {
    const Leaf leaf = codes.zeros->codes.tensor;
    const bool may_be_bytes = codes.zeros->codes.bits == 8 && codes.zeros->codes.packing == Packing::kAlongRow;
    if (!is_word(dtype_of(leaf)) && !(may_be_bytes && dtype_of(leaf) == DType::kInt8)) return leaf.tensor;
  }
  if (!is_index(codes.row_group)) return codes.row_group->tensor;
  if (!is_index(codes.column_group)) return codes.column_group->tensor;
  if (codes.stated && !is_index(codes.stated->first)) return codes.stated->first.tensor;
  return std::nullopt;
}

std::string dtype_and_shape(const Tensor& tensor) {
  return fmt::format("{} {}", dtype_name(tensor.dtype), to_string(tensor.shape.span()));
}

FormulaDraft::FormulaDraft(const Search& all, const QuantizedModule& its_module) : search(all), module(its_module) {
  for (const QuantizedMember& member : search.part.members_of(module)) take(member);
}

void FormulaDraft::take(const QuantizedMember& member) {
  using Role = QuantizedRole;
  const std::string_view name = at(member.tensor).name;
  const std::array<std::pair<Role, std::uint32_t*>, 8> places{
      {{Role::kWeight, &parts.weight},
       {Role::kScale, &parts.scale},
       {Role::kSecondScale, &parts.second},
       {Role::kZeroPoint, &parts.zeros},
       {Role::kShape, &parts.shape},
       {Role::kGroupIndex, &parts.group_index},
       {Role::kCodeBook, name.ends_with("nested_quant_map") ? &parts.nested_book : &parts.book},
       {Role::kDescription, &parts.description}}};
  if (is_beside_weight(name)) parts.beside = member.tensor;
  if (member.role == Role::kOther && describes_form(name)) parts.layout = member.tensor;
  for (const auto& [role, place] : places) {
    if (role == member.role) (*place == kNone ? *place : parts.repeated) = member.tensor;
  }
}

const Tensor& FormulaDraft::scale() const {
  need(parts.scale, "its scales are");
  return at(parts.scale);
}

Error FormulaDraft::wrong(std::uint32_t tensor, std::string_view what) const {
  Error error(ErrorCode::kCorruption, fmt::format("cannot dequantize '{}': {}", module.name, what));
  error.of_tensor(at(tensor).name).of_kind(FindingKind::kShapeMismatch);
  error.because(fmt::format("its form is {}", quantized_form_name(module.form)));
  error.found(dtype_and_shape(at(tensor)));
  if (!search.facts.is_quantized) error.hint("copy the model's config.json to the folder of the source");
  return error;
}

Error FormulaDraft::unsupported(std::string_view what) const {
  return no_formula(module.form, module.name, weight().name, what).found(dtype_and_shape(weight()));
}

void FormulaDraft::refuse_if(const std::string& reason) const {
  if (!reason.empty()) throw unsupported(reason);
}

void FormulaDraft::need(std::uint32_t tensor, std::string_view what) const {
  if (tensor == kNone) throw wrong(parts.weight, fmt::format("{} missing", what));
}

void FormulaDraft::check_count(std::uint32_t tensor, std::int64_t wanted) const {
  need(tensor, "its scales are");
  if (checked_numel(at(tensor).shape) == wanted) return;
  throw wrong(tensor, "its number of elements does not fit the weight").expected(fmt::format("{} numbers", wanted));
}

void FormulaDraft::check_matrix(std::uint32_t tensor, std::int64_t rows, std::int64_t columns) const {
  check_count(tensor, checked_mul(rows, columns));
  const Dims shape = at(tensor).shape;
  if (shape.size() < 2 || shape[shape.size() - 1] == columns) return;
  throw wrong(tensor, "its shape does not fit the weight").expected(fmt::format("rows of {} numbers", columns));
}

std::vector<std::int64_t> FormulaDraft::numbers_of(std::uint32_t tensor) const {
  if (!is_integer(at(tensor).dtype)) throw wrong(tensor, kWrongDtype);
  const std::vector<std::byte> bytes = search.read(tensor);
  std::vector<std::int64_t> numbers(bytes.size() / static_cast<std::size_t>(element_bytes(at(tensor).dtype)));
  cast(at(tensor).dtype, bytes, DType::kInt64, std::as_writable_bytes(std::span(numbers)));
  for (const std::int64_t number : numbers) {
    if (number < 0) throw wrong(tensor, "a dimension is negative");
  }
  return numbers;
}

bool FormulaDraft::is_all_zero(std::uint32_t tensor) const {
  if (checked_bytes(checked_numel(at(tensor).shape), at(tensor).dtype) > kMostSmallBytes) return false;
  return std::ranges::all_of(search.read(tensor), [](std::byte byte) { return byte == std::byte{0}; });
}

void FormulaDraft::set_matrices(std::span<const std::int64_t> shape) {
  const Matrices matrices = matrices_of(shape);
  set_shape(formula, shape);
  codes.slices = matrices.slices;
  codes.rows = matrices.rows;
  codes.columns = matrices.columns;
}

void FormulaDraft::set_row_groups(std::int64_t columns) {
  codes.scales.grid = {1, columns};
  check_matrix(parts.scale, checked_mul(codes.slices, codes.rows), ceil_div(codes.columns, columns));
}

void FormulaDraft::set_second(bool divides) {
  need(parts.second, "its global scale is");
  const std::int64_t count = checked_numel(at(parts.second).shape);
  if (count != 1 && count != codes.slices) throw wrong(parts.second, "the global scales do not fit the weight");
  codes.scales.second = Leaf{parts.second};
  codes.scales.divides = divides;
}

void FormulaDraft::transpose() {
  const std::size_t last = formula.shape.size() - 1;
  std::swap(formula.shape[last - 1], formula.shape[last]);
  std::swap(formula.strides[last - 1], formula.strides[last]);
}

void FormulaDraft::round_as_scales() { formula.through_float16 = scale().dtype == DType::kFloat16; }

}  // namespace shard
