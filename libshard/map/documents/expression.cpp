#include "libshard/map/documents/expression.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"

namespace shard {

namespace {

constexpr int kMaxDepth = 32;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// The remainder with the sign of b, as in Python. \pre b is not 0; the quotient is a number.
std::int64_t floor_mod(std::int64_t a, std::int64_t b) {
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
/// The quotient rounded down. \pre as floor_mod
std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b == floor_mod(a, b) ? 0 : 1); }

}  // namespace

/// A recursive-descent parser with a method for each line of the grammar.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::string_view text) : text_(text) { parsed_.text_ = text; }

  Expression run() {
    if (text_.size() > Expression::kMaxText)
      throw wrong(fmt::format("it is longer than {} bytes", Expression::kMaxText));
    sum(0);
    skip_spaces();
    if (at_ != text_.size()) throw wrong(fmt::format("'{}' is not expected", text_.substr(at_)));
    return std::move(parsed_);
  }

 private:
  using Op = Expression::Op;

  Error wrong(const std::string& why) const {
    return Error(ErrorCode::kInvalidArgument, fmt::format("'{}' is not an expression", text_)).because(why);
  }

  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  /// Consumes `token` if it is next.
  bool take(std::string_view token) {
    skip_spaces();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  void add(Op op) { parsed_.steps_.push_back({op}); }

  void sum(int depth) {
    if (depth > kMaxDepth) throw wrong(fmt::format("it nests deeper than {}", kMaxDepth));
    product(depth);
    for (;;) {
      const bool is_plus = take("+");
      if (!is_plus && !take("-")) return;
      product(depth);
      add(is_plus ? Op::kAdd : Op::kSubtract);
    }
  }

  void product(int depth) {
    unary(depth);
    for (;;) {
      const Op op = take("//") ? Op::kDivide : take("*") ? Op::kMultiply : take("%") ? Op::kRemainder : Op::kNumber;
      if (op == Op::kNumber) return;
      unary(depth);
      add(op);
    }
  }

  void unary(int depth) {
    if (depth > kMaxDepth) throw wrong(fmt::format("it nests deeper than {}", kMaxDepth));
    if (take("-")) {
      unary(depth + 1);
      add(Op::kNegate);
    } else if (take("(")) {
      sum(depth + 1);
      close();
    } else if (at_ < text_.size() && is_digit(text_[at_])) {
      number();
    } else {
      name(depth);
    }
  }

  void close() {
    if (!take(")")) throw wrong("a ')' is missing");
  }

  void number() {
    std::string_view rest = text_.substr(at_);
    const std::optional<std::int64_t> value = take_number(rest);
    if (!value) throw wrong("a number is too large");
    at_ = text_.size() - rest.size();
    parsed_.steps_.push_back({Op::kNumber, *value});
  }

  void name(int depth) {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || (at_ > begin && is_digit(text_[at_])))) ++at_;
    const std::string_view word = text_.substr(begin, at_ - begin);
    if (word.empty())
      throw wrong(at_ == text_.size() ? "it ends too early" : fmt::format("'{}' is not expected", text_[at_]));
    if (take("(")) return call(word, depth);
    const auto known = std::ranges::find(parsed_.names_, word);
    parsed_.steps_.push_back({Op::kName, known - parsed_.names_.begin()});
    if (known == parsed_.names_.end()) parsed_.names_.emplace_back(word);
  }

  void call(std::string_view function, int depth) {
    const Op op = function == "min"       ? Op::kMin
                  : function == "max"     ? Op::kMax
                  : function == "ceil_to" ? Op::kCeilTo
                                          : throw wrong(fmt::format("'{}' is not a function", function));
    // min and max of n numbers become n - 1 steps with two operands each.
    int count = 0;
    do {
      sum(depth + 1);
      if (++count > 1) add(op);
    } while (take(","));
    close();
    if (op == Op::kCeilTo && count != 2) throw wrong("ceil_to takes two numbers");
  }

  std::string_view text_;
  std::size_t at_ = 0;
  Expression parsed_;
};

Expression::Expression(std::int64_t constant) : steps_{{Op::kNumber, constant}}, text_(std::to_string(constant)) {}

Expression Expression::parse(std::string_view text) { return ExpressionParser(text).run(); }

std::int64_t Expression::apply(Op op, std::int64_t a, std::int64_t b) const {
  const auto wrong = [&](std::string_view why) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("cannot evaluate '{}'", text_)).because(why);
  };
  std::int64_t result = 0;
  bool overflows = false;
  if ((op == Op::kDivide || op == Op::kRemainder) && b == 0) throw wrong("it divides by 0");
  if (op == Op::kCeilTo && b < 1) throw wrong(fmt::format("ceil_to has the step {}", b));
  if (op == Op::kAdd) overflows = __builtin_add_overflow(a, b, &result);
  if (op == Op::kSubtract) overflows = __builtin_sub_overflow(a, b, &result);
  if (op == Op::kMultiply) overflows = __builtin_mul_overflow(a, b, &result);
  if (op == Op::kMin) result = std::min(a, b);
  if (op == Op::kMax) result = std::max(a, b);
  if (op == Op::kCeilTo) {
    const std::int64_t rest = floor_mod(a, b);
    overflows = __builtin_add_overflow(a, rest == 0 ? 0 : b - rest, &result);
  }
  if (op == Op::kRemainder) result = b == -1 ? 0 : floor_mod(a, b);
  if (op == Op::kDivide) {
    overflows = a == INT64_MIN && b == -1;
    if (!overflows) result = floor_div(a, b);
  }
  if (overflows) throw wrong("a number is too large");
  return result;
}

std::int64_t Expression::evaluate(const std::function<std::int64_t(std::string_view name)>& number_of) const {
  // An operation replaces the last numbers of the stack, its operands, by its result.
  std::vector<std::int64_t> stack;
  for (const Step& step : steps_) {
    if (step.op == Op::kNumber) {
      stack.push_back(step.number);
    } else if (step.op == Op::kName) {
      stack.push_back(number_of(names_[static_cast<std::size_t>(step.number)]));
    } else if (step.op == Op::kNegate) {
      stack.back() = apply(Op::kSubtract, 0, stack.back());
    } else {
      const std::int64_t b = stack.back();
      stack.pop_back();
      stack.back() = apply(step.op, stack.back(), b);
    }
  }
  return stack.empty() ? 0 : stack.back();
}

}  // namespace shard
