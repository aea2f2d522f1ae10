/// \file Expression: integer arithmetic over named numbers in map documents, for example `ceil_to(n, 128*tp)`.
///
///     sum     = product { ("+" | "-") product }
///     product = unary { ("*" | "//" | "%") unary }
///     unary   = "-" unary | number | name | name "(" sum { "," sum } ")" | "(" sum ")"
///
/// Functions: min and max of one or more numbers, ceil_to(n, step) with a positive step. `//` and `%` as in Python.
///
/// An expression of real numbers, such as `1 / sqrt(head_dim)`, may also have `/`, the function sqrt of one number, and
/// numbers with a fraction.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shard {

/// A parsed expression. Pure. Copies share their contents, because every rule is copied for every state of a map.
class Expression {
 public:
  static constexpr std::size_t kMaxText = 1024;  ///< The limit in bytes.

  Expression() : Expression(0) {}  ///< The number 0.
  explicit Expression(std::int64_t constant);
  static Expression of_real(double constant);
  /// \throws Error kInvalidArgument  the text is not an expression, or is too long or too deeply nested.
  static Expression parse(std::string_view text);
  /// Does the same for an expression of real numbers, which only evaluate_real can evaluate.
  static Expression parse_real(std::string_view text);

  /// Evaluates the expression. `number_of` returns the number of a name. It may throw.
  /// \throws Error kInvalidArgument  a division by 0, or a number past 63 bits.
  std::int64_t evaluate(const std::function<std::int64_t(std::string_view name)>& number_of) const;
  /// Evaluates an expression of either kind in double, where `//` and `%` round down as well.
  /// \throws Error kInvalidArgument  the number, or one on the way, is not finite.
  double evaluate_real(const std::function<std::int64_t(std::string_view name)>& number_of) const;
  const std::string& text() const { return parsed_->text; }

 private:
  friend class ExpressionParser;
  enum class Op : std::uint8_t {
    kNumber,
    kName,
    kNegate,
    kAdd,
    kSubtract,
    kMultiply,
    kDivide,
    kRemainder,
    kMin,
    kMax,
    kCeilTo,
    kReal,
    kQuotient,
    kRoot
  };
  struct Step {
    Op op;
    std::int64_t number = 0;  ///< The constant; for a name, its index in `names`.
    double real = 0;          ///< For kReal: the constant.
  };
  struct Parsed {
    std::vector<Step> steps;  ///< In postfix order.
    std::vector<std::string> names;
    std::string text;
  };
  explicit Expression(Parsed parsed);
  std::int64_t apply(Op op, std::int64_t a, std::int64_t b) const;
  double apply(Op op, double a, double b) const;
  template <class Number>
  Number run(const std::function<std::int64_t(std::string_view name)>& number_of) const;

  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace shard
