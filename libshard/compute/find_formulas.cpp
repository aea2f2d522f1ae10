#include "libshard/compute/find_formulas.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "libshard/compute/block_grid.h"
#include "libshard/compute/code_dtypes.h"
#include "libshard/compute/stated_schemes.h"
#include "libshard/compute/unknown_codes.h"
#include "libshard/core/box.h"
#include "libshard/core/bytes.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/json_builder.h"
#include "libshard/exec/cast.h"

namespace shard {

namespace {

using Form = QuantizedForm;
using Role = QuantizedRole;

bool are_exponents(const Tensor& scale) { return scale.dtype == DType::kUint8 || scale.dtype == DType::kFloat8E8m0fnu; }

/// ComfyUI's descriptions: of one module in JSON, and of a whole checkpoint by a dtype.
constexpr std::string_view kOfComfy = ".comfy_quant", kMarkOfComfy = "scaled_fp8";

/// Numbers about the form under names that no other tensor has.
bool describes_form(std::string_view name) {
  return name.ends_with(".weight_format") || name.ends_with(kOfComfy) || name.ends_with(kMarkOfComfy);
}

constexpr std::string_view kWrongDtype = "its dtype has no meaning there";

/// The inputs of the search, which all modules share.
struct Search {
  const Catalog& catalog;
  const QuantizedPart part;
  DType dtype;
  const QuantizationFacts& facts;
  const StatedSchemes stated;
  const ReadSmall& read;
  const std::string unknown_form = unknown_form_of_all(part, stated);
  const bool is_tiled_by_comfy = has_tiles_of_comfy(catalog);
};

/// The formula of one module.
class ModuleFormula {
 public:
  ModuleFormula(const Search& search, const QuantizedModule& module)
      : catalog_(search.catalog),
        module_(module),
        facts_(search.facts),
        stated_(search.stated),
        read_(search.read),
        is_tiled_by_comfy_(search.is_tiled_by_comfy) {
    for (const QuantizedMember& member : search.part.members_of(module)) take(member);
  }

  Formula make(DType dtype) {
    formula_.dtype = dtype;
    formula_.name = plain_name();
    refuse_order_of_comfy();
    make_codes();
    if (const auto at = find_wrong_dtype(catalog_, codes_)) throw wrong(*at, kWrongDtype);
    if (repeated_ != kNone) throw wrong(repeated_, "another tensor of its module has the same meaning");
    if (group_index_ != kNone && !codes_.row_group && !codes_.column_group) throw unsupported("it has a group index");
    const bool has_two_levels = codes_.scales.second || codes_.scales.nested;
    if (second_ != kNone && !has_two_levels) throw unsupported("it has scales of two levels");
    if (zeros_ != kNone && !codes_.zeros && !is_all_zero(zeros_)) throw unsupported("it has zero points");
    if (beside_ != kNone) throw unsupported(beside_weight_text(at(beside_).name));
    if (facts_.transforms_inputs) throw unsupported("the configuration states that the model rotates its inputs");
    if (const std::string text = stated_.contradiction(module_, codes_); !text.empty()) throw wrong(weight_, text);
    formula_.value.node = codes_;
    return std::move(formula_);
  }

 private:
  static constexpr std::uint32_t kNone = kNoIndex;

  void take(const QuantizedMember& member) {
    const std::string_view name = at(member.tensor).name;
    const std::array<std::pair<Role, std::uint32_t*>, 8> places{
        {{Role::kWeight, &weight_},
         {Role::kScale, &scale_},
         {Role::kSecondScale, &second_},
         {Role::kZeroPoint, &zeros_},
         {Role::kShape, &shape_},
         {Role::kGroupIndex, &group_index_},
         {Role::kCodeBook, name.ends_with("nested_quant_map") ? &nested_book_ : &book_},
         {Role::kDescription, &description_}}};
    if (is_beside_weight(name)) beside_ = member.tensor;
    if (member.role == Role::kOther && describes_form(name)) layout_ = member.tensor;
    for (const auto& [role, place] : places) {
      if (role == member.role) (*place == kNone ? *place : repeated_) = member.tensor;
    }
  }

  const Tensor& at(std::uint32_t tensor) const { return catalog_.tensors[tensor]; }
  const Tensor& weight() const { return at(weight_); }
  const Tensor& scale() const {
    need(scale_, "its scales are");
    return at(scale_);
  }

  Error wrong(std::uint32_t tensor, std::string_view what) const {
    Error error(ErrorCode::kCorruption, fmt::format("cannot dequantize '{}': {}", module_.name, what));
    error.of_tensor(at(tensor).name).of_kind(FindingKind::kShapeMismatch);
    error.because(fmt::format("its form is {}", quantized_form_name(module_.form)));
    error.found(text_of(at(tensor)));
    if (!facts_.is_quantized) error.hint("copy the model's config.json to the folder of the source");
    return error;
  }

  Error unsupported(std::string_view what) const {
    return no_formula(module_.form, module_.name, weight().name, what).found(text_of(weight()));
  }

  static std::string text_of(const Tensor& tensor) {
    return fmt::format("{} {}", dtype_name(tensor.dtype), to_string(tensor.shape.span()));
  }

  /// \param reason  empty: none
  void refuse_if(const std::string& reason) const {
    if (!reason.empty()) throw unsupported(reason);
  }

  bool is_all_zero(std::uint32_t tensor) const {
    if (checked_bytes(checked_numel(at(tensor).shape), at(tensor).dtype) > kMostSmallBytes) return false;
    return std::ranges::all_of(read_(tensor), [](std::byte byte) { return byte == std::byte{0}; });
  }

  void need(std::uint32_t tensor, std::string_view what) const {
    if (tensor == kNone) throw wrong(weight_, fmt::format("{} missing", what));
  }

  /// ComfyUI's FP4 has the high nibble first, and its scales of blocks are stored in tiles of 128 x 4.
  void refuse_order_of_comfy() const {
    bool is_tiled = is_tiled_by_comfy_ && (module_.form == Form::kNvfp4 || are_exponents(scale()));
    if (layout_ != kNone && at(layout_).name.ends_with(kOfComfy)) {
      const Bytes bytes = read_(layout_);
      is_tiled = as_text(bytes).find("\"float8_") == std::string_view::npos;
    }
    if (is_tiled) throw unsupported("ComfyUI stores the codes and scales of this form in the order of a GPU's kernels");
  }

  std::string plain_name() const {
    std::string name(weight().name);
    constexpr std::string_view kPacked = "_packed", kBlocks = "_blocks", kCodes = "qweight";
    if (module_.form == Form::kMxfp4Blocks && name.ends_with(kBlocks)) name.resize(name.size() - kBlocks.size());
    if (name.ends_with("weight_packed")) name.resize(name.size() - kPacked.size());
    if (name.ends_with(kCodes)) name.erase(name.size() - kCodes.size(), 1);
    return name;
  }

  void make_codes() {
    codes_.codes.tensor.tensor = weight_;
    codes_.scales.tensor.tensor = scale_;
    switch (module_.form) {
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
        return make_bitsandbytes4();
      case Form::kBitsandbytes8:
        return make_bitsandbytes8();
      case Form::kGptq:
        if (facts_.method == "awq") refuse_if(other_kind_of_awq(weight(), scale(), facts_.schemes));
        return make_gptq();
      case Form::kAwq:
        return make_awq();
      default:
        throw unsupported("this form has no formula");
    }
  }

  void set_matrices(std::span<const std::int64_t> shape) {
    const Matrices matrices = matrices_of(shape);
    set_shape(formula_, shape);
    codes_.slices = matrices.slices;
    codes_.rows = matrices.rows;
    codes_.columns = matrices.columns;
  }

  /// The shape of codes that pack `per` numbers in each element of the last dimension.
  std::vector<std::int64_t> unpacked_shape(std::int64_t per) const {
    std::vector<std::int64_t> shape(weight().shape.begin(), weight().shape.end());
    if (shape.size() < 2) throw wrong(weight_, "the codes are not a matrix");
    shape.back() = checked_mul(shape.back(), per);
    return shape;
  }

  // ---- Grids of scales.

  bool has_scales_of_columns() const { return are_of_columns(weight().shape.span(), scale().shape.span()); }

  /// Sets the grid from the shapes of weight and scales.
  void set_grid() {
    codes_.scales.are_exponents = are_exponents(scale());
    if (choose_grid(weight().shape.span(), scale().shape.span(), facts_.schemes, codes_)) return;
    throw wrong(scale_, "the number of scales does not fit the weight")
        .expected(fmt::format("a scale per tensor, row or block of {}", to_string(formula_.shape)));
  }

  /// The same for blocks of 1 x `columns`.
  void set_row_groups(std::int64_t columns) {
    codes_.scales.grid = {1, columns};
    check_matrix(scale_, checked_mul(codes_.slices, codes_.rows), ceil_div(codes_.columns, columns));
  }

  /// Rows of `columns` numbers.
  void check_matrix(std::uint32_t tensor, std::int64_t rows, std::int64_t columns) const {
    check_count(tensor, checked_mul(rows, columns));
    const Dims shape = at(tensor).shape;
    if (shape.size() < 2 || shape[shape.size() - 1] == columns) return;
    throw wrong(tensor, "its shape does not fit the weight").expected(fmt::format("rows of {} numbers", columns));
  }

  void check_count(std::uint32_t tensor, std::int64_t wanted) const {
    need(tensor, "its scales are");
    if (checked_numel(at(tensor).shape) == wanted) return;
    throw wrong(tensor, "its number of elements does not fit the weight").expected(fmt::format("{} numbers", wanted));
  }

  /// The second level of scales: one number, or one per slice. `divides`: scales are divided by it.
  void set_second(bool divides) {
    need(second_, "its global scale is");
    const std::int64_t count = checked_numel(at(second_).shape);
    if (count != 1 && count != codes_.slices) throw wrong(second_, "the global scales do not fit the weight");
    codes_.scales.second = Leaf{second_};
    codes_.scales.divides = divides;
  }

  // ---- Forms.

  void make_bytes(CodeKind kind) {
    if (scale().name.ends_with("weight_scales")) throw unsupported("the order of its codes is that of EETQ's kernels");
    if (std::ranges::any_of(facts_.schemes, &QuantizationScheme::divides)) {
      throw unsupported("its codes are divided by its scales");
    }
    if (kind == CodeKind::kSigned && has_scales_of_columns()) throw unsupported("its groups are down the columns");
    if (kind == CodeKind::kSigned && has_packed_bytes(facts_.method)) {
      throw unsupported(fmt::format("the configuration's method is '{}', so a byte has two codes", facts_.method));
    }
    set_matrices(weight().shape.span());
    codes_.kind = kind;
    if (module_.form == Form::kMxfp8) {
      codes_.scales.are_exponents = true;
      set_row_groups(32);
    } else {
      set_grid();
    }
    if (!scale().name.ends_with("_inv")) round_as_scales();  // transformers computes FP8 blocks in float32.
    if (kind == CodeKind::kSigned) {
      codes_.range_bits = stated_.bits_of_groups(codes_.columns, codes_.scales.grid.block_columns);
    }
    if (zeros_ == kNone || kind != CodeKind::kSigned || at(zeros_).dtype != DType::kInt8) return;
    check_count(zeros_, checked_numel(scale().shape));
    codes_.zeros = ZeroPoints{{Leaf{zeros_}, 8, Packing::kAlongRow}};
  }

  void make_nvfp4() {
    if (has_scales_of_columns()) throw unsupported("its codes are packed down the columns");
    set_matrices(unpacked_shape(2));
    codes_.kind = CodeKind::kFloat4;
    codes_.codes.bits = 4;
    set_row_groups(16);
    set_second(module_.form == Form::kNvfp4Packed);
  }

  void make_mxfp4(std::span<const std::int64_t> shape) {
    refuse_if(other_kind_of_mx(weight(), scale(), facts_.schemes));
    set_matrices(shape);
    codes_.kind = CodeKind::kFloat4;
    codes_.codes.bits = 4;
    codes_.scales.are_exponents = true;
    set_row_groups(32);
  }

  /// The form of GPT-OSS: [..., groups, 16 bytes], with the last two logical dimensions exchanged.
  void make_mxfp4_blocks() {
    const Dims shape = weight().shape;
    const int dims = shape.size();
    if (dims < 3 || shape[dims - 1] != 16) throw wrong(weight_, "the blocks have no 16 bytes");
    std::vector<std::int64_t> stored(shape.begin(), shape.end() - 1);
    stored.back() = checked_mul(stored.back(), 32);
    make_mxfp4(stored);
    transpose();
  }

  /// The logical tensor has the last two dimensions of the codes exchanged.
  void transpose() {
    const std::size_t last = formula_.shape.size() - 1;
    std::swap(formula_.shape[last - 1], formula_.shape[last]);
    std::swap(formula_.strides[last - 1], formula_.strides[last]);
  }

  /// References compute in the dtype of the scales.
  void round_as_scales() { formula_.through_float16 = scale().dtype == DType::kFloat16; }

  void make_packed_ints() {
    const Dims packed = weight().shape, scales = scale().shape;
    if (packed.size() < 2) throw wrong(weight_, "the codes are not a matrix");
    const bool is_of_tensor = scales.size() == 1 && scales[0] == 1;
    if (!is_of_tensor && (scales.size() != packed.size() || scales[scales.size() - 1] < 1)) {
      throw wrong(scale_, "the scales do not fit the weight");
    }
    const std::int64_t words = packed[packed.size() - 1], groups = scales[scales.size() - 1];
    const auto [bits, columns] = bits_and_columns(words, groups);
    std::vector<std::int64_t> shape(packed.begin(), packed.end());
    shape.back() = columns;
    set_matrices(shape);
    codes_.codes.bits = bits;
    const bool has_packed_zeros = zeros_ != kNone && at(zeros_).dtype != DType::kInt8;
    codes_.kind = has_packed_zeros ? CodeKind::kUnsigned : CodeKind::kOffset;
    round_as_scales();
    const std::int64_t scale_rows = is_of_tensor ? 1 : codes_.rows;  // In each slice.
    check_count(scale_, checked_mul(checked_mul(codes_.slices, scale_rows), groups));
    codes_.scales.grid = {is_of_tensor ? std::max<std::int64_t>(1, codes_.rows) : 1, set_groups(columns, groups)};
    if (zeros_ != kNone && !has_packed_zeros) {  // compressed-tensors before 0.9, or one for the tensor.
      check_matrix(zeros_, checked_mul(codes_.slices, scale_rows), groups);
      codes_.zeros = ZeroPoints{{Leaf{zeros_}, 8, Packing::kAlongRow}};
    } else if (zeros_ != kNone) {
      const std::int64_t rows = ceil_div(checked_mul(scale_rows, bits), kPackedWordBits);
      check_matrix(zeros_, checked_mul(codes_.slices, rows), groups);
      codes_.zeros = ZeroPoints{{Leaf{zeros_}, bits, Packing::kDownColumn}};
    }
    if (shape_ != kNone) state_shape(shape);
    if (group_index_ == kNone) return;
    check_count(group_index_, columns);
    codes_.column_group = Leaf{group_index_};
  }

  /// Sets the number and size of groups of `all` rows or columns. Without a group index, the size must be known.
  /// \returns the size, or 1 if it is unknown
  std::int64_t set_groups(std::int64_t all, std::int64_t groups) {
    codes_.groups = groups;
    codes_.group_size = stated_.size_of_groups(codes_.codes.bits, all, groups);
    if (codes_.group_size == 0 && group_index_ == kNone) {
      throw wrong(scale_, "the size of its groups is unknown")
          .expected(fmt::format("one stated size that divides {} codes into {} groups", all, groups));
    }
    return std::max<std::int64_t>(1, codes_.group_size);
  }

  void state_shape(const std::vector<std::int64_t>& shape) {
    const std::int64_t count = checked_numel(at(shape_).shape);
    if (count < 2 || count > std::ssize(shape)) throw wrong(shape_, "the stated shape does not fit the weight");
    codes_.stated.emplace(Leaf{shape_}, std::vector<std::int64_t>(shape.end() - count, shape.end()));
  }

  /// From the configuration if one of its schemes fits; otherwise the stated shape is read.
  std::pair<int, std::int64_t> bits_and_columns(std::int64_t words, std::int64_t groups) const {
    const auto fits = [&](std::int64_t bits, std::int64_t columns) {
      return bits >= 1 && bits <= 8 && columns > 0 && ceil_div(checked_mul(columns, bits), kPackedWordBits) == words &&
             groups <= columns;
    };
    std::set<std::pair<int, std::int64_t>> fitting;
    for (const QuantizationScheme& scheme : facts_.schemes) {
      if (!scheme.bits || !scheme.group_size || *scheme.group_size < 1 || groups == 1) continue;
      const std::int64_t columns = checked_mul(groups, *scheme.group_size);
      if (fits(*scheme.bits, columns)) fitting.emplace(static_cast<int>(*scheme.bits), columns);
    }
    if (fitting.size() == 1) return *fitting.begin();
    need(shape_, "the shape of the weight is");
    const std::vector<std::int64_t> stated = numbers_of(shape_);
    const std::int64_t columns = stated.empty() ? 0 : stated.back();
    std::set<std::int64_t> candidates;
    for (const QuantizationScheme& scheme : facts_.schemes) {
      if (scheme.bits && fits(*scheme.bits, columns)) candidates.insert(*scheme.bits);
    }
    for (std::int64_t bits = 1; candidates.empty() && bits <= 8; ++bits) {
      if (fits(bits, columns) && !fits(bits + 1, columns) && !fits(bits - 1, columns)) candidates.insert(bits);
    }
    if (candidates.size() != 1) throw wrong(weight_, "no number of bits fits its codes").expected(to_string(stated));
    return {static_cast<int>(*candidates.begin()), columns};
  }

  std::vector<std::int64_t> numbers_of(std::uint32_t tensor) const {
    if (!is_integer(at(tensor).dtype)) throw wrong(tensor, kWrongDtype);
    const std::vector<std::byte> bytes = read_(tensor);
    std::vector<std::int64_t> numbers(bytes.size() / static_cast<std::size_t>(element_bytes(at(tensor).dtype)));
    cast(at(tensor).dtype, bytes, DType::kInt64, std::as_writable_bytes(std::span(numbers)));
    for (const std::int64_t number : numbers) {
      if (number < 0) throw wrong(tensor, "a dimension is negative");
    }
    return numbers;
  }

  /// Codes and scales of GPTQ and AWQ, which are stored as [in, out].
  void set_in_out(std::int64_t rows, std::int64_t columns, int bits) {
    set_matrices(std::array{rows, columns});
    codes_.codes.bits = bits;
    round_as_scales();
    const Dims scales = scale().shape;
    if (scales.size() != 2 || scales[1] != columns || scales[0] < 1 || scales[0] > std::max<std::int64_t>(rows, 1)) {
      throw wrong(scale_, "the number of scales does not fit the weight")
          .expected(fmt::format("[groups, {}]", columns));
    }
    codes_.scales.grid = {set_groups(rows, scales[0]), 1};
    transpose();
  }

  void make_awq() {
    const Dims packed = weight().shape;
    if (packed.size() != 2) throw wrong(weight_, "the codes are not a matrix");
    refuse_if(other_kind_of_awq(weight(), scale(), facts_.schemes));
    set_in_out(packed[0], checked_mul(packed[1], 8), 4);
    codes_.codes.packing = Packing::kAwq;
    need(zeros_, "its zero points are");
    check_matrix(zeros_, codes_.groups, packed[1]);
    codes_.zeros = ZeroPoints{{Leaf{zeros_}, 4, Packing::kAwq}};
  }

  void make_gptq() {
    const Dims packed = weight().shape;
    if (packed.size() != 2 || weight().dtype != DType::kInt32)
      throw wrong(weight_, "the codes are not a matrix of words");
    need(zeros_, "its zero points are");
    const bool may_be_of_gptq = facts_.method == "gptq" || facts_.method.empty();
    if (may_be_of_gptq) refuse_if(stated_.unknown_format("gptq"));  // Others order codes differently.
    const int bits = gptq_bits(packed[0]);
    if (checked_mul(packed[0], kPackedWordBits) % bits != 0)
      throw wrong(weight_, "its rows of words contain no whole codes");
    const std::int64_t rows = checked_mul(packed[0], kPackedWordBits) / bits;
    set_in_out(rows, packed[1], bits);
    codes_.codes.packing = Packing::kDownColumn;
    check_matrix(zeros_, codes_.groups, ceil_div(checked_mul(packed[1], bits), kPackedWordBits));
    if (at(zeros_).dtype != DType::kInt32) throw wrong(zeros_, kWrongDtype).found(dtype_name(at(zeros_).dtype));
    if (!facts_.is_quantized) {
      throw wrong(zeros_, "no configuration states the version of GPTQ, which decides on zero points");
    }
    const bool is_second_version = std::ranges::any_of(
        facts_.schemes, [](const QuantizationScheme& scheme) { return scheme.format == "gptq_v2"; });
    codes_.zeros = ZeroPoints{{Leaf{zeros_}, bits, Packing::kAlongRow}, !is_second_version};
    if (group_index_ == kNone) return;
    check_count(group_index_, rows);
    codes_.row_group = Leaf{group_index_};
  }

  /// From the group index, or else from the zero points, which are packed in the same way.
  int gptq_bits(std::int64_t words) const {
    const auto from = [&](std::int64_t all_words, std::int64_t codes) -> std::int64_t {
      const std::int64_t all_bits = checked_mul(all_words, kPackedWordBits);
      return codes > 0 && all_bits % codes == 0 ? all_bits / codes : 0;
    };
    std::int64_t bits = group_index_ == kNone ? 0 : from(words, checked_numel(at(group_index_).shape));
    const Dims zeros = at(zeros_).shape;
    if (group_index_ == kNone && zeros.size() == 2) bits = from(zeros[1], weight().shape[1]);
    // GPTQModel stores 5 to 7 bits in planes, and AutoRound as a string of bits.
    const bool is_string = bits < 5 || bits > 7 || facts_.method.ends_with("auto-round");
    if (!is_string) throw unsupported(fmt::format("codes of {} bits have no formula", bits));
    if (bits < 2 || bits > 8) throw wrong(weight_, "no number of bits fits its codes");
    return static_cast<int>(bits);
  }

  void make_bitsandbytes4() {
    need(description_, "its description is");
    need(book_, "its code book is");
    const Bytes bytes = read_(description_);
    const nlohmann::json facts = parse_json<nlohmann::json>(
        as_text(bytes), {}, [&](const std::string& why) { return wrong(description_, why); });
    const auto number = [&](const char* key) {
      const auto found = facts.is_object() ? facts.find(key) : facts.end();
      if (found == facts.end() || !found->is_number_integer() || *found < 1) {
        throw wrong(description_, fmt::format("its description has no number '{}'", key));
      }
      return found->get<std::int64_t>();
    };
    const std::int64_t block = number("blocksize");
    std::vector<std::int64_t> shape;
    if (const auto found = facts.find("shape"); found != facts.end() && found->is_array()) {
      for (const auto& each : *found) shape.push_back(each.is_number_integer() ? each.get<std::int64_t>() : -1);
    }
    if (std::ranges::any_of(shape, [](std::int64_t size) { return size < 0; })) {
      throw wrong(description_, "its description states no shape").expected("a list of sizes").found(to_string(shape));
    }
    const std::int64_t numbers = checked_numel(shape);
    if (shape.empty() || ceil_div(numbers, 2) != checked_bytes(checked_numel(weight().shape), weight().dtype)) {
      throw wrong(weight_, "the stated shape does not fit the codes").expected(to_string(shape));
    }
    set_shape(formula_, shape);
    codes_.rows = 1;
    codes_.columns = numbers;
    codes_.kind = CodeKind::kBook;
    codes_.codes.bits = 4;
    codes_.codes.packing = Packing::kHighFirst;
    codes_.book = Leaf{book_};
    if (checked_numel(at(book_).shape) != 16) throw wrong(book_, "the code book has no 16 numbers");
    codes_.scales.grid = {1, block};
    check_count(scale_, ceil_div(numbers, block));
    if (second_ == kNone) return;
    need(nested_book_, "the code book of its scales is");
    if (checked_numel(at(nested_book_).shape) != 256) throw wrong(nested_book_, "the code book has no 256 numbers");
    const std::int64_t group = number("nested_blocksize");
    check_count(second_, ceil_div(checked_numel(scale().shape), group));
    const auto offset = facts.find("nested_offset");
    if (offset == facts.end() || !offset->is_number()) {
      throw wrong(description_, "its description has no number 'nested_offset'");
    }
    codes_.scales.nested = BlockScales::Nested{Leaf{nested_book_}, Leaf{second_}, group, offset->get<float>()};
  }

  void make_bitsandbytes8() {
    set_matrices(weight().shape.span());
    if (weight().shape.size() != 2) throw wrong(weight_, "the codes are not a matrix");
    if (layout_ != kNone && !is_all_zero(layout_)) {
      throw unsupported("its weight_format is not 0, so the order of its codes is that of a GPU's kernels");
    }
    codes_.kind = CodeKind::kSigned;
    codes_.scales.grid = {1, std::max<std::int64_t>(1, codes_.columns)};
    check_count(scale_, codes_.rows);
    codes_.factor = 1.0F / 127.0F;
  }

  const Catalog& catalog_;
  const QuantizedModule& module_;
  const QuantizationFacts& facts_;
  const StatedSchemes& stated_;
  const ReadSmall& read_;
  const bool is_tiled_by_comfy_;
  std::uint32_t weight_ = kNone, scale_ = kNone, second_ = kNone, zeros_ = kNone, shape_ = kNone, group_index_ = kNone,
                book_ = kNone, nested_book_ = kNone, description_ = kNone, layout_ = kNone;
  std::uint32_t repeated_ = kNone, beside_ = kNone;  ///< The former has the role of an earlier tensor.
  Formula formula_;
  ScaledCodes codes_;
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
