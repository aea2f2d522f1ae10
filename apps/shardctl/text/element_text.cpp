#include "apps/shardctl/text/element_text.h"

#include <fmt/compile.h>
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstring>

#include "libshard/exec/cast.h"

namespace shard::app {
namespace {

/// The dtype that is used to print values of `dtype`. It can represent all of them.
DType shown_as(DType dtype) {
  if (is_float(dtype) && dtype != DType::kFloat64) return DType::kFloat32;
  if (is_integer(dtype) && dtype != DType::kUint64) return DType::kInt64;
  return dtype == DType::kComplex32 ? DType::kComplex64 : dtype;
}

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

char* put(char* to, std::string_view text) { return std::copy(text.begin(), text.end(), to); }

template <class Real>
char* put_real(char* to, Real value, Spelling spelling) {
  if (!std::isfinite(value)) {
    const std::string_view word = std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
    return spelling == Spelling::kPython ? put(to, word) : put(put(put(to, "\""), word), "\"");
  }
  char* const end = fmt::format_to(to, FMT_COMPILE("{}"), value);
  const bool looks_integral =
      std::string_view(to, static_cast<std::size_t>(end - to)).find_first_of(".e") == std::string_view::npos;
  return looks_integral ? put(end, ".0") : end;
}

template <class Real>
char* put_complex(char* to, const std::byte* from, Spelling spelling) {
  const Real real = load<Real>(from), imaginary = load<Real>(from + sizeof(Real));
  if (spelling == Spelling::kJson) {
    to = put_real(put(to, "["), real, spelling);
    return put(put_real(put(to, ", "), imaginary, spelling), "]");
  }
  to = put_real(to, real, spelling);
  if (std::isnan(imaginary) || !std::signbit(imaginary)) to = put(to, "+");
  return put(put_real(to, imaginary, spelling), "j");
}

template <class Integer>
char* put_integer(char* to, const std::byte* from) {
  return std::to_chars(to, to + 24, load<Integer>(from)).ptr;
}

char* put_bool(char* to, const std::byte* from, Spelling spelling) {
  const bool value = *from != std::byte{0};
  if (spelling == Spelling::kJson) return put(to, value ? "true" : "false");
  return put(to, value ? "True" : "False");
}

/// \pre shown_as returns `dtype`
char* put_element(char* to, const std::byte* from, DType dtype, Spelling spelling) {
  switch (dtype) {
    case DType::kBool:
      return put_bool(to, from, spelling);
    case DType::kUint64:
      return put_integer<std::uint64_t>(to, from);
    case DType::kInt64:
      return put_integer<std::int64_t>(to, from);
    case DType::kFloat64:
      return put_real(to, load<double>(from), spelling);
    case DType::kComplex64:
      return put_complex<float>(to, from, spelling);
    case DType::kComplex128:
      return put_complex<double>(to, from, spelling);
    default:
      return put_real(to, load<float>(from), spelling);
  }
}

}  // namespace

bool ElementText::can_show(DType dtype) { return is_castable(dtype); }

ElementText::ElementText(DType dtype, Spelling spelling)
    : dtype_(dtype),
      shown_(shown_as(dtype)),
      spelling_(spelling),
      bytes_(static_cast<std::size_t>(element_bytes(shown_))) {}

void ElementText::take(std::span<const std::byte> elements) {
  const std::size_t count = elements.size() / static_cast<std::size_t>(element_bytes(dtype_));
  size_ = static_cast<std::int64_t>(count);
  elements_ = elements;
  if (shown_ == dtype_) return;
  widened_.resize(count * bytes_);
  cast(dtype_, elements, shown_, widened_);
  elements_ = widened_;
}

std::string_view ElementText::operator[](std::int64_t index) {
  const std::byte* const from = elements_.data() + static_cast<std::size_t>(index) * bytes_;
  return {text_, static_cast<std::size_t>(put_element(text_, from, shown_, spelling_) - text_)};
}

}  // namespace shard::app
