#include "libshard/ranks/wire.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

namespace shard {

void WireWriter::number(std::int64_t value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void WireWriter::real(double value) { number(std::bit_cast<std::int64_t>(value)); }

void WireWriter::text(std::string_view value) {
  number(static_cast<std::int64_t>(value.size()));
  const auto bytes = std::as_bytes(std::span(value));
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void WireWriter::error(const Error& value) {
  number(static_cast<std::int64_t>(value.code()));
  text(value.what());
  number(value.rank().value_or(-1));
  for (const std::string* part :
       {&value.file(), &value.tensor(), &value.why(), &value.hint(), &value.expected(), &value.found()}) {
    text(*part);
  }
  number(value.kind() ? static_cast<std::int64_t>(*value.kind()) : kFindingKindCount);
  number(static_cast<std::int64_t>(value.suggestions().size()));
  for (const Suggestion& each : value.suggestions()) {
    number(static_cast<std::int64_t>(each.remedy));
    text(each.argument);
  }
}

std::span<const std::byte> WireReader::take(std::uint64_t count) {
  if (count > rest_.size()) {
    throw Error(ErrorCode::kPeer, "cannot read a message from another rank: it is truncated")
        .expected(fmt::format("{} bytes", count))
        .found(fmt::format("{}", rest_.size()));
  }
  const auto front = rest_.first(count);
  rest_ = rest_.subspan(count);
  return front;
}

std::int64_t WireReader::number() {
  std::int64_t value = 0;
  std::memcpy(&value, take(sizeof value).data(), sizeof value);
  return value;
}

double WireReader::real() { return std::bit_cast<double>(number()); }

std::string WireReader::text() { return std::string(as_text(take(static_cast<std::uint64_t>(number())))); }

std::int64_t WireReader::number_below(std::int64_t end) {
  const std::int64_t value = number();
  if (value < 0 || value >= end) fail_malformed();
  return value;
}

void WireReader::fail_malformed() {
  throw Error(ErrorCode::kPeer, "cannot read a message from another rank: it is malformed");
}

Error WireReader::error() {
  const std::int64_t code = number_below(static_cast<std::int64_t>(ErrorCode::kInternal) + 1);
  Error error(static_cast<ErrorCode>(code), text());
  if (const std::int64_t rank = number(); rank >= 0) error.of_rank(static_cast<int>(rank));
  error.in_file(text()).of_tensor(text());
  error.because(text()).hint(text());
  error.expected(text()).found(text());
  if (const std::int64_t kind = number_below(kFindingKindCount + 1); kind < kFindingKindCount) {
    error.of_kind(static_cast<FindingKind>(kind));
  }
  for (std::int64_t left = number(); left > 0; --left) {
    const auto remedy = static_cast<Remedy>(number_below(kRemedyCount));
    error.suggest(remedy, text());
  }
  return error;
}

}  // namespace shard
