#include "libshard/map/documents/expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "libshard/core/ascii.h"
#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"

namespace shard {

namespace {

constexpr int kMaxDepth = 32;

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
  ExpressionParser(std::string_view text, bool is_real) : text_(text), is_real_(is_real) { parsed_.text = text; }

  Expression run() {
    if (text_.size() > Expression::kMaxText)
      throw wrong(fmt::format("it is longer than {} bytes", Expression::kMaxText));
    sum(0);
    skip_spaces();
    if (at_ != text_.size()) throw wrong(fmt::format("'{}' is not expected", text_.substr(at_)));
    return Expression(std::move(parsed_));
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

  void add(Op op) { parsed_.steps.push_back({op}); }

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
      const Op op = take("//")              ? Op::kDivide
                    : take("*")             ? Op::kMultiply
                    : take("%")             ? Op::kRemainder
                    : is_real_ && take("/") ? Op::kQuotient
                                            : Op::kNumber;
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
    if (is_real_) {
      const std::optional<double> value = take_number<double>(rest);
      if (!value) throw wrong("a number is too large");
      parsed_.steps.push_back({Op::kReal, 0, *value});
    } else {
      const std::optional<std::int64_t> value = take_number(rest);
      if (!value) throw wrong("a number is too large");
      parsed_.steps.push_back({Op::kNumber, *value});
    }
    at_ = text_.size() - rest.size();
  }

  void name(int depth) {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || text_[at_] == '_' || (at_ > begin && is_digit(text_[at_]))))
      ++at_;
    const std::string_view word = text_.substr(begin, at_ - begin);
    if (word.empty())
      throw wrong(at_ == text_.size() ? "it ends too early" : fmt::format("'{}' is not expected", text_[at_]));
    if (take("(")) return call(word, depth);
    const auto known = std::ranges::find(parsed_.names, word);
    parsed_.steps.push_back({Op::kName, known - parsed_.names.begin()});
    if (known == parsed_.names.end()) parsed_.names.emplace_back(word);
  }

  void call(std::string_view function, int depth) {
    if (is_real_ && function == "sqrt") {
      sum(depth + 1);
      close();
      return add(Op::kRoot);
    }
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
  bool is_real_;
  std::size_t at_ = 0;
  Expression::Parsed parsed_;
};

Expression::Expression(Parsed parsed) : parsed_(std::make_shared<const Parsed>(std::move(parsed))) {}
Expression::Expression(std::int64_t constant)
    : Expression(Parsed{{{Op::kNumber, constant}}, {}, std::to_string(constant)}) {}

Expression Expression::of_real(double constant) {
  return Expression(Parsed{{{Op::kReal, 0, constant}}, {}, fmt::format("{}", constant)});
}

Expression Expression::parse(std::string_view text) { return ExpressionParser(text, false).run(); }
Expression Expression::parse_real(std::string_view text) { return ExpressionParser(text, true).run(); }

std::int64_t Expression::apply(Op op, std::int64_t a, std::int64_t b) const {
  const auto wrong = [&](std::string_view why) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("cannot evaluate '{}'", parsed_->text)).because(why);
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

double Expression::apply(Op op, double a, double b) const {
  double result = 0;
  if (op == Op::kAdd) result = a + b;
  if (op == Op::kSubtract) result = a - b;
  if (op == Op::kMultiply) result = a * b;
  if (op == Op::kQuotient) result = a / b;
  if (op == Op::kDivide) result = std::floor(a / b);
  if (op == Op::kRemainder) result = a - b * std::floor(a / b);
  if (op == Op::kMin) result = std::min(a, b);
  if (op == Op::kMax) result = std::max(a, b);
  if (op == Op::kCeilTo) result = std::ceil(a / b) * b;
  if (op == Op::kRoot) result = std::sqrt(a);
  if (std::isfinite(result)) return result;
  throw Error(ErrorCode::kInvalidArgument, fmt::format("cannot evaluate '{}'", parsed_->text))
      .because("it is not finite");
}

template <class Number>
Number Expression::run(const std::function<std::int64_t(std::string_view name)>& number_of) const {
  // An operation replaces the last numbers of the stack, its operands, by its result.
  std::vector<Number> stack;
  for (const Step& step : parsed_->steps) {
    if (step.op == Op::kNumber) {
      stack.push_back(static_cast<Number>(step.number));
    } else if (step.op == Op::kReal) {
      stack.push_back(static_cast<Number>(step.real));
    } else if (step.op == Op::kName) {
      stack.push_back(static_cast<Number>(number_of(parsed_->names[static_cast<std::size_t>(step.number)])));
    } else if (step.op == Op::kNegate) {
      stack.back() = apply(Op::kMultiply, Number{-1}, stack.back());
    } else if (step.op == Op::kRoot) {
      stack.back() = apply(step.op, stack.back(), Number{0});
    } else {
      const Number b = stack.back();
      stack.pop_back();
      stack.back() = apply(step.op, stack.back(), b);
    }
  }
  return stack.empty() ? 0 : stack.back();
}

std::int64_t Expression::evaluate(const std::function<std::int64_t(std::string_view name)>& number_of) const {
  return run<std::int64_t>(number_of);
}

double Expression::evaluate_real(const std::function<std::int64_t(std::string_view name)>& number_of) const {
  return run<double>(number_of);
}

}  // namespace shard
