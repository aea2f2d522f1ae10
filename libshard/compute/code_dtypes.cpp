#include "libshard/compute/code_dtypes.h"

#include "libshard/catalog/quantized.h"

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
      return dtype == DType::kUint8 || dtype == DType::kInt8 || dtype == DType::kFloat4E2m1fnX2;
    case CodeKind::kFloat8:
      return dtype_block(dtype).bytes == 1 && is_castable(dtype);
    case CodeKind::kBook:
      return is_integer(dtype) || is_plain_float(dtype);
    case CodeKind::kOne:
      return dtype_block(dtype).elements == 1;
  }
  return false;
}

bool fits_scales(const BlockScales& scales, DType dtype) {
  if (scales.nested) return dtype == DType::kUint8;
  if (scales.are_exponents) return dtype == DType::kUint8 || dtype == DType::kFloat8E8m0fnu;
  return is_real(dtype);
}

}  // namespace

std::optional<std::uint32_t> find_wrong_dtype(const Catalog& catalog, const ScaledCodes& codes) {
  const auto dtype_of = [&](const Leaf& leaf) { return catalog.tensors[leaf.tensor].dtype; };
  const auto is_number = [&](const std::optional<Leaf>& leaf) { return !leaf || is_real(dtype_of(*leaf)); };
  const auto is_index = [&](const std::optional<Leaf>& leaf) { return !leaf || is_integer(dtype_of(*leaf)); };
  if (!fits_codes(codes, dtype_of(codes.codes.tensor))) return codes.codes.tensor.tensor;
  if (!fits_scales(codes.scales, dtype_of(codes.scales.tensor))) return codes.scales.tensor.tensor;
  if (!is_number(codes.scales.second)) return codes.scales.second->tensor;
  if (!is_number(codes.book)) return codes.book->tensor;
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

}  // namespace shard
