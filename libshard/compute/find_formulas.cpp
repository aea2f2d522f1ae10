#include "libshard/compute/find_formulas.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "libshard/compute/block_grid.h"
#include "libshard/compute/formula_draft.h"
#include "libshard/compute/unknown_codes.h"
#include "libshard/core/box.h"
#include "libshard/core/bytes.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

using Form = QuantizedForm;
using Role = QuantizedRole;

/// Makes the formula of one module.
class ModuleFormula : private FormulaDraft {
 public:
  using FormulaDraft::FormulaDraft;

  Formula make(DType dtype) {
    formula.dtype = dtype;
    formula.name = plain_name();
    if (parts.beside != kNone) throw unsupported(beside_weight_text(at(parts.beside).name));
    refuse_order_of_comfy();
    make_codes();
    if (const auto at = find_wrong_dtype(search.catalog, codes)) throw wrong(*at, kWrongDtype);
    if (parts.repeated != kNone) throw wrong(parts.repeated, "another tensor of its module has the same meaning");
    if (parts.group_index != kNone && !codes.row_group && !codes.column_group)
      throw unsupported("it has a group index");
    const bool has_two_levels = codes.scales.second || codes.scales.nested;
    if (parts.second != kNone && !has_two_levels) throw unsupported("it has scales of two levels");
    if (parts.zeros != kNone && !codes.zeros && !codes.added && !is_all_zero(parts.zeros))
      throw unsupported("it has zero points");
    if (search.facts.transforms_inputs) throw unsupported("the configuration states that the model rotates its inputs");
    if (const std::string text = search.stated.contradiction(module, codes); !text.empty())
      throw wrong(parts.weight, text);
    formula.value.node = codes;
    return std::move(formula);
  }

 private:
  /// ComfyUI's FP4 has the high nibble first, and its scales of blocks are stored in tiles of 128 x 4.
  void refuse_order_of_comfy() const {
    bool is_tiled = search.is_tiled_by_comfy && (module.form == Form::kNvfp4 || are_exponents(scale()));
    if (parts.layout != kNone && at(parts.layout).name.ends_with(kOfComfy)) {
      const Bytes bytes = search.read(parts.layout);
      is_tiled = as_text(bytes).find("\"float8_") == std::string_view::npos;
    }
    if (is_tiled) throw unsupported("ComfyUI stores the codes and scales of this form in the order of a GPU's kernels");
  }

  std::string plain_name() const {
    std::string name(weight().name);
    constexpr std::string_view kPacked = "_packed", kBlocks = "_blocks", kCodes = "qweight", kData = "_qdata";
    if (module.form == Form::kTorchao) {  // `a._weight_qdata` belongs to `a.weight`.
      name.resize(name.size() - kData.size());
      name.erase(name.rfind('.') + 1, 1);
      return name;
    }
    if (module.form == Form::kMxfp4Blocks && name.ends_with(kBlocks)) name.resize(name.size() - kBlocks.size());
    if (name.ends_with(kPacked)) name.resize(name.size() - kPacked.size());
    if (name.ends_with(kCodes)) name.erase(name.size() - kCodes.size(), 1);
    return name;
  }

  void make_codes() {
    codes.codes.tensor.tensor = parts.weight;
    codes.scales.tensor.tensor = parts.scale;
    switch (module.form) {
      case Form::kFloat8:
      case Form::kMxfp8:
        return make_bytes(CodeKind::kFloat8);
      case Form::kInt8:
        return make_bytes(CodeKind::kSigned);
      case Form::kPackedInts:
        return make_packed_ints();
      case Form::kNvfp4Packed:
      case Form::kNvfp4:
        return make_nvfp4();
      case Form::kMxfp4Packed:
      case Form::kFp4Exponents:
        return make_mxfp4(unpacked_shape(2));
      case Form::kMxfp4Blocks:
        return make_mxfp4_blocks();
      case Form::kBitsandbytes4:
        return make_bitsandbytes4(*this);
      case Form::kBitsandbytes8:
        return make_bitsandbytes8(*this);
      case Form::kGptq:
        if (search.facts.method == "awq") refuse_if(other_kind_of_awq(weight(), scale(), search.facts.schemes));
        return make_gptq();
      case Form::kAwq:
        return make_awq();
      case Form::kMlx:
        return make_mlx(*this);
      case Form::kTorchao:
        return make_torchao();
      default:
        throw unsupported("this form has no formula");
    }
  }

  /// The shape of codes that pack `per` numbers in each element of the last dimension.
  std::vector<std::int64_t> unpacked_shape(std::int64_t per) const {
    std::vector<std::int64_t> shape(weight().shape.begin(), weight().shape.end());
    if (shape.size() < 2) throw wrong(parts.weight, "the codes are not a matrix");
    shape.back() = checked_mul(shape.back(), per);
    return shape;
  }

  // ---- Grids of scales.

  bool has_scales_of_columns() const { return are_of_columns(weight().shape.span(), scale().shape.span()); }

  /// Sets the grid from the shapes of weight and scales.
  void set_grid() {
    codes.scales.are_exponents = are_exponents(scale());
    codes.scales.are_powers = std::ranges::any_of(search.facts.schemes, &QuantizationScheme::has_powers);
    if (choose_grid(weight().shape.span(), scale().shape.span(), search.facts.schemes, codes)) return;
    throw wrong(parts.scale, "the number of scales does not fit the weight")
        .expected(fmt::format("a scale per tensor, row or block of {}", to_string(formula.shape)));
  }

  // ---- Forms.

  void make_bytes(CodeKind kind) {
    if (scale().name.ends_with("weight_scales")) throw unsupported("the order of its codes is that of EETQ's kernels");
    if (std::ranges::any_of(search.facts.schemes, &QuantizationScheme::divides)) {
      throw unsupported("its codes are divided by its scales");
    }
    if (kind == CodeKind::kSigned && has_scales_of_columns()) throw unsupported("its groups are down the columns");
    if (kind == CodeKind::kSigned && has_packed_bytes(search.facts.method)) {
      throw unsupported(
          fmt::format("the configuration's method is '{}', so a byte has two codes", search.facts.method));
    }
    set_matrices(weight().shape.span());
    codes.kind = kind;
    if (module.form == Form::kMxfp8) {
      codes.scales.are_exponents = true;
      set_row_groups(32);
    } else {
      set_grid();
    }
    if (!scale().name.ends_with("_inv")) round_as_scales();  // transformers computes FP8 blocks in float32.
    if (kind == CodeKind::kSigned) {
      codes.range_bits = search.stated.bits_of_groups(codes.columns, codes.scales.grid.block_columns);
    }
    if (parts.zeros == kNone || kind != CodeKind::kSigned || at(parts.zeros).dtype != DType::kInt8) return;
    check_count(parts.zeros, checked_numel(scale().shape));
    codes.zeros = ZeroPoints{{Leaf{parts.zeros}, 8, Packing::kAlongRow}};
  }

  /// Float8Tensor, Int8Tensor and IntxUnpackedToInt8Tensor, which have a byte for each code. Others pack codes, or may
  /// store exponents in tiles.
  void make_torchao() {
    const Tensor& stored = weight();
    const std::string_view part = std::string_view(stored.name).substr(stored.name.rfind('.') + 1);
    const bool is_float8 = dtype_block(stored.dtype).bytes == 1 && is_float(stored.dtype);
    const bool is_plain = is_float8 || stored.dtype == DType::kInt8;
    if (!is_plain || !part.starts_with('_') || !part.ends_with("_qdata") || are_exponents(scale())) {
      throw unsupported("this form has no formula");
    }
    // Int4Tensor also has bytes, but its scales are transposed.
    if (parts.zeros != kNone && is_float(at(parts.zeros).dtype)) {
      throw unsupported("its zero points are not integers, so a byte has two codes");
    }
    const auto is_sparse = [this](const QuantizedMember& member) {
      return at(member.tensor).name.ends_with("_sparse_metadata");
    };
    if (std::ranges::any_of(search.part.members_of(module), is_sparse)) throw unsupported("its codes are sparse");
    make_bytes(is_float8 ? CodeKind::kFloat8 : CodeKind::kSigned);
  }

  void make_nvfp4() {
    if (has_scales_of_columns()) throw unsupported("its codes are packed down the columns");
    set_matrices(unpacked_shape(2));
    codes.kind = CodeKind::kFloat4;
    codes.codes.bits = 4;
    set_row_groups(columns_of_nvfp4());
    set_second(module.form == Form::kNvfp4Packed);
  }

  /// 16 columns for each scale, or a stated size that fits: ModelOpt's W4A8_NVFP4_FP8 has 32.
  std::int64_t columns_of_nvfp4() const {
    constexpr std::int64_t kUsualColumns = 16;
    const Dims scales = scale().shape;
    const auto fits = [&](std::int64_t size) {
      return size >= 1 && scales.size() > 0 && scales[scales.size() - 1] == ceil_div(codes.columns, size);
    };
    if (fits(kUsualColumns)) return kUsualColumns;
    for (const QuantizationScheme& scheme : search.facts.schemes) {
      if (scheme.allows_bits(4) && fits(scheme.group_size.value_or(0))) return *scheme.group_size;
    }
    return kUsualColumns;
  }

  void make_mxfp4(std::span<const std::int64_t> shape) {
    refuse_if(other_kind_of_mx(weight(), scale(), search.facts.schemes));
    set_matrices(shape);
    codes.kind = CodeKind::kFloat4;
    codes.codes.bits = 4;
    codes.scales.are_exponents = true;
    set_row_groups(32);
  }

  /// The form of GPT-OSS: [..., groups, 16 bytes], with the last two logical dimensions exchanged.
  void make_mxfp4_blocks() {
    const Dims shape = weight().shape;
    const int dims = shape.size();
    if (dims < 3 || shape[dims - 1] != 16) throw wrong(parts.weight, "the blocks have no 16 bytes");
    std::vector<std::int64_t> stored(shape.begin(), shape.end() - 1);
    stored.back() = checked_mul(stored.back(), 32);
    make_mxfp4(stored);
    transpose();
  }

  void make_packed_ints() {
    const Dims packed = weight().shape, scales = scale().shape;
    if (packed.size() < 2) throw wrong(parts.weight, "the codes are not a matrix");
    const bool is_of_tensor = scales.size() == 1 && scales[0] == 1;
    if (!is_of_tensor && (scales.size() != packed.size() || scales[scales.size() - 1] < 1)) {
      throw wrong(parts.scale, "the scales do not fit the weight");
    }
    const std::int64_t words = packed[packed.size() - 1], groups = scales[scales.size() - 1];
    const auto [bits, columns] = bits_and_columns(words, groups);
    std::vector<std::int64_t> shape(packed.begin(), packed.end());
    shape.back() = columns;
    set_matrices(shape);
    codes.codes.bits = bits;
    const bool has_packed_zeros = parts.zeros != kNone && at(parts.zeros).dtype != DType::kInt8;
    codes.kind = has_packed_zeros ? CodeKind::kUnsigned : CodeKind::kOffset;
    round_as_scales();
    const std::int64_t scale_rows = is_of_tensor ? 1 : codes.rows;  // In each slice.
    check_count(parts.scale, checked_mul(checked_mul(codes.slices, scale_rows), groups));
    codes.scales.grid = {is_of_tensor ? std::max<std::int64_t>(1, codes.rows) : 1, set_groups(columns, groups)};
    if (parts.zeros != kNone && !has_packed_zeros) {  // compressed-tensors before 0.9, or one for the tensor.
      check_matrix(parts.zeros, checked_mul(codes.slices, scale_rows), groups);
      codes.zeros = ZeroPoints{{Leaf{parts.zeros}, 8, Packing::kAlongRow}};
    } else if (parts.zeros != kNone) {
      const std::int64_t rows = ceil_div(checked_mul(scale_rows, bits), kPackedWordBits);
      check_matrix(parts.zeros, checked_mul(codes.slices, rows), groups);
      codes.zeros = ZeroPoints{{Leaf{parts.zeros}, bits, Packing::kDownColumn}};
    }
    if (parts.shape != kNone) state_shape(shape);
    if (parts.group_index == kNone) return;
    check_count(parts.group_index, columns);
    codes.column_group = Leaf{parts.group_index};
  }

  /// Sets the number and size of groups of `all` rows or columns. Without a group index, the size must be known.
  /// \returns the size, or 1 if it is unknown
  std::int64_t set_groups(std::int64_t all, std::int64_t groups) {
    codes.groups = groups;
    codes.group_size = search.stated.size_of_groups(codes.codes.bits, all, groups);
    if (codes.group_size == 0 && parts.group_index == kNone) {
      throw wrong(parts.scale, "the size of its groups is unknown")
          .expected(fmt::format("one stated size that divides {} codes into {} groups", all, groups));
    }
    return std::max<std::int64_t>(1, codes.group_size);
  }

  void state_shape(const std::vector<std::int64_t>& shape) {
    const std::int64_t count = checked_numel(at(parts.shape).shape);
    if (count < 2 || count > std::ssize(shape)) throw wrong(parts.shape, "the stated shape does not fit the weight");
    codes.stated.emplace(Leaf{parts.shape}, std::vector<std::int64_t>(shape.end() - count, shape.end()));
  }

  /// From the configuration if one of its schemes fits. Otherwise the stated shape is read.
  std::pair<int, std::int64_t> bits_and_columns(std::int64_t words, std::int64_t groups) const {
    const auto fits = [&](std::int64_t bits, std::int64_t columns) {
      return bits >= 1 && bits <= 8 && columns > 0 && ceil_div(checked_mul(columns, bits), kPackedWordBits) == words &&
             groups <= columns;
    };
    std::set<std::pair<int, std::int64_t>> fitting;
    for (const QuantizationScheme& scheme : search.facts.schemes) {
      if (!scheme.bits || !scheme.group_size || *scheme.group_size < 1 || groups == 1) continue;
      const std::int64_t columns = checked_mul(groups, *scheme.group_size);
      if (fits(*scheme.bits, columns)) fitting.emplace(static_cast<int>(*scheme.bits), columns);
    }
    if (fitting.size() == 1) return *fitting.begin();
    need(parts.shape, "the shape of the weight is");
    const std::vector<std::int64_t> stated = numbers_of(parts.shape);
    const std::int64_t columns = stated.empty() ? 0 : stated.back();
    std::set<std::int64_t> candidates;
    for (const QuantizationScheme& scheme : search.facts.schemes) {
      if (scheme.bits && fits(*scheme.bits, columns)) candidates.insert(*scheme.bits);
    }
    for (std::int64_t bits = 1; candidates.empty() && bits <= 8; ++bits) {
      if (fits(bits, columns) && !fits(bits + 1, columns) && !fits(bits - 1, columns)) candidates.insert(bits);
    }
    if (candidates.size() != 1)
      throw wrong(parts.weight, "no number of bits fits its codes").expected(to_string(stated));
    return {static_cast<int>(*candidates.begin()), columns};
  }

  /// Codes and scales of GPTQ and AWQ, which are stored as [in, out].
  void set_in_out(std::int64_t rows, std::int64_t columns, int bits) {
    set_matrices(std::array{rows, columns});
    codes.codes.bits = bits;
    round_as_scales();
    const Dims scales = scale().shape;
    if (scales.size() != 2 || scales[1] != columns || scales[0] < 1 || scales[0] > std::max<std::int64_t>(rows, 1)) {
      throw wrong(parts.scale, "the number of scales does not fit the weight")
          .expected(fmt::format("[groups, {}]", columns));
    }
    codes.scales.grid = {set_groups(rows, scales[0]), 1};
    transpose();
  }

  void make_awq() {
    const Dims packed = weight().shape;
    if (packed.size() != 2) throw wrong(parts.weight, "the codes are not a matrix");
    refuse_if(other_kind_of_awq(weight(), scale(), search.facts.schemes));
    set_in_out(packed[0], checked_mul(packed[1], 8), 4);
    codes.codes.packing = Packing::kAwq;
    need(parts.zeros, "its zero points are");
    check_matrix(parts.zeros, codes.groups, packed[1]);
    codes.zeros = ZeroPoints{{Leaf{parts.zeros}, 4, Packing::kAwq}};
  }

  void make_gptq() {
    const Dims packed = weight().shape;
    if (packed.size() != 2 || weight().dtype != DType::kInt32)
      throw wrong(parts.weight, "the codes are not a matrix of words");
    need(parts.zeros, "its zero points are");
    const bool may_be_of_gptq = search.facts.method == "gptq" || search.facts.method.empty();
    if (may_be_of_gptq) refuse_if(search.stated.unknown_format("gptq"));  // Others order codes differently.
    const int bits = gptq_bits(packed[0]);
    if (checked_mul(packed[0], kPackedWordBits) % bits != 0)
      throw wrong(parts.weight, "its rows of words contain no whole codes");
    const std::int64_t rows = checked_mul(packed[0], kPackedWordBits) / bits;
    set_in_out(rows, packed[1], bits);
    codes.codes.packing = Packing::kDownColumn;
    check_matrix(parts.zeros, codes.groups, ceil_div(checked_mul(packed[1], bits), kPackedWordBits));
    if (at(parts.zeros).dtype != DType::kInt32)
      throw wrong(parts.zeros, kWrongDtype).found(dtype_name(at(parts.zeros).dtype));
    if (!search.facts.is_quantized) {
      throw wrong(parts.zeros, "no configuration states the version of GPTQ, which decides on zero points");
    }
    const bool is_second_version = std::ranges::any_of(
        search.facts.schemes, [](const QuantizationScheme& scheme) { return scheme.format == "gptq_v2"; });
    codes.zeros = ZeroPoints{{Leaf{parts.zeros}, bits, Packing::kAlongRow}, !is_second_version};
    if (parts.group_index == kNone) return;
    check_count(parts.group_index, rows);
    codes.row_group = Leaf{parts.group_index};
  }

  /// From the group index, or else from the zero points, which are packed in the same way.
  int gptq_bits(std::int64_t words) const {
    const auto from = [&](std::int64_t all_words, std::int64_t numbers) -> std::int64_t {
      const std::int64_t all_bits = checked_mul(all_words, kPackedWordBits);
      return numbers > 0 && all_bits % numbers == 0 ? all_bits / numbers : 0;
    };
    std::int64_t bits = parts.group_index == kNone ? 0 : from(words, checked_numel(at(parts.group_index).shape));
    const Dims zeros = at(parts.zeros).shape;
    if (parts.group_index == kNone && zeros.size() == 2) bits = from(zeros[1], weight().shape[1]);
    // GPTQModel stores 5 to 7 bits in planes, and AutoRound as a string of bits.
    const bool is_string = bits < 5 || bits > 7 || search.facts.method.ends_with("auto-round");
    if (!is_string) throw unsupported(fmt::format("codes of {} bits have no formula", bits));
    if (bits < 2 || bits > 8) throw wrong(parts.weight, "no number of bits fits its codes");
    return static_cast<int>(bits);
  }
};

/// Adds the formula of a module, and the tensors that it replaces.
void add_module(const Search& search, const QuantizedModule& module, Computation& out) {
  if (module.form == Form::kState || is_stated_plain(search.catalog, search.part, module, search.stated)) return;
  const std::span<const QuantizedMember> members = search.part.members_of(module);
  const bool has_scale = std::ranges::any_of(members, is_number_of_codes, &QuantizedMember::role);
  for (const QuantizedMember& member : members) {
    if (member.role == Role::kOther && !describes_form(search.catalog.tensors[member.tensor].name)) continue;
    out.dropped.push_back(member.tensor);
  }
  if (module.has_weight != (module.has_weight ? module.has_scales : has_scale)) {
    throw incomplete_module(search.catalog, search.part, module, search.unknown_form);
  }
  if (!module.has_weight) return;
  out.formulas.push_back(ModuleFormula(search, module).make(search.dtype));
}

/// Adds the file of the error's tensor.
Error& in_its_file(Error& error, const Catalog& catalog) {
  const Tensor* const tensor = catalog.find(error.tensor());
  return tensor != nullptr && tensor->chunk_count > 0 ? error.in_file(catalog.file_of(*tensor).path) : error;
}

}  // namespace

Computation find_formulas(const Catalog& catalog, DType dtype, const QuantizationFacts& facts, const ReadSmall& read,
                          Findings& findings) try {
  const Search search{catalog, find_quantized(catalog, facts), dtype, facts, StatedSchemes(facts), read};
  Computation found;
  for (const std::uint32_t index : search.part.lone_floats) {
    const Tensor& tensor = catalog.tensors[index];
    Error error(ErrorCode::kCorruption, fmt::format("cannot dequantize '{}': its scales are missing", tensor.name));
    error.of_tensor(tensor.name).of_kind(FindingKind::kGap).found(dtype_name(tensor.dtype));
    findings.report(in_its_file(error.hint("if no scales belong to it, convert it to a plain dtype instead"), catalog));
    found.dropped.push_back(index);
  }
  for (const QuantizedModule& module : search.part.modules) {
    try {
      add_module(search, module, found);
    } catch (Error& error) {
      if (error.code() != ErrorCode::kCorruption) throw;
      findings.report(in_its_file(error, catalog));
    }
  }
  refuse_beside_weights(catalog, search.part);
  if (facts.is_quantized) refuse_unknown_codes(catalog, search.part, search.stated);
  join_tied(catalog, found.formulas);
  return found;
} catch (Error& error) {
  throw Error(in_its_file(error, catalog));
}

}  // namespace shard
