#include "shardtorch/sharded_tensor/agree.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <ranges>
#include <span>
#include <string_view>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/ranks/wire.h"
#include "shardtorch/errors.h"

namespace shard {

namespace {

enum class Answer : std::int64_t { kData, kValue, kIndex, kType, kNotImplemented, kAttribute, kRuntime, kShard };

void write(WireWriter& out, Answer answer, std::string_view text) {
  out.number(static_cast<std::int64_t>(answer));
  out.text(text);
}

Bytes data_message(std::span<const std::byte> bytes) {
  WireWriter out;
  write(out, Answer::kData, as_text(bytes));
  return out.take();
}

Bytes failure_message(const std::exception_ptr& failure) {
  WireWriter out;
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    write(out, Answer::kShard, "");
    out.error(error);
  } catch (const c10::ValueError& error) {
    write(out, Answer::kValue, error.msg());
  } catch (const c10::IndexError& error) {
    write(out, Answer::kIndex, error.msg());
  } catch (const c10::TypeError& error) {
    write(out, Answer::kType, error.msg());
  } catch (const c10::NotImplementedError& error) {
    write(out, Answer::kNotImplemented, error.msg());
  } catch (const AttributeError& error) {
    write(out, Answer::kAttribute, error.msg());
  } catch (const c10::Error& error) {
    write(out, Answer::kRuntime, error.msg());
  } catch (const std::exception& error) {
    write(out, Answer::kRuntime, error.what());
  } catch (...) {
    write(out, Answer::kRuntime, "an exception not derived from std::exception");
  }
  return out.take();
}

/// The data of a message. Throws the error of a failing rank.
Bytes data_of(std::span<const std::byte> message) {
  WireReader in(message);
  const auto answer = static_cast<Answer>(in.number());
  const std::string text = in.text();
  SHARD_CHECK_VALUE(answer != Answer::kValue, text);
  SHARD_CHECK_INDEX(answer != Answer::kIndex, text);
  SHARD_CHECK_TYPE(answer != Answer::kType, text);
  SHARD_CHECK_NOT_IMPLEMENTED(answer != Answer::kNotImplemented, text);
  SHARD_CHECK_ATTRIBUTE(answer != Answer::kAttribute, text);
  if (answer == Answer::kShard) throw in.error();
  SHARD_CHECK(answer == Answer::kData, text);
  return to_bytes(text);
}

Bytes message_of(const Words& words) {
  WireWriter out;
  for (const std::string& word : words) out.text(word);
  return out.take();
}

using Digest = std::array<char, 32>;

/// A digest of words; zero if there are none, as in most calls.
Digest digest_of(const Words& words) {
  Digest digest{};
  if (words.empty()) return digest;
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(message_of(words));
  std::ranges::copy(hasher.finish_hex(), digest.begin());
  return digest;
}

/// \throws c10::ValueError  `message` has different words.
void expect_same_words(const Words& own, int own_rank, const Bytes& message, std::size_t rank) {
  WireReader in(message);
  for (std::size_t i = 0; i < own.size() || !in.at_end(); ++i) {
    const std::string word = i < own.size() ? own[i] : "no argument";
    const std::string other = in.at_end() ? "no argument" : in.text();
    SHARD_CHECK_VALUE(word == other, word, " on rank: ", own_rank, " does not match with ", other, " on rank: ", rank);
  }
}

/// Throws if ranks have different words. A collective.
void compare_words(Group& group, const Words& own) {
  const std::vector<Bytes> messages = all_gather(group, message_of(own));
  for (std::size_t i = 0; i < messages.size(); ++i) expect_same_words(own, group.rank(), messages[i], i);
}

template <class Values>
bool all_equal(const Values& values) {
  return std::ranges::adjacent_find(values, std::ranges::not_equal_to()) == std::ranges::end(values);
}

/// Does the same as all_gather, in one operation if all messages are short, as they usually are.
/// \throws c10::ValueError  ranks have different `facts`.
std::vector<Bytes> gather_messages(Group& group, const Bytes& own, const Words& facts) {
  constexpr std::size_t kShort = 56;
  struct Envelope {
    std::uint64_t bytes;
    Digest facts;
    std::array<std::byte, kShort> message;
  };
  Envelope sent{own.size(), digest_of(facts), {}};
  std::ranges::copy(std::span(own).first(std::min(own.size(), kShort)), sent.message.begin());
  std::vector<Envelope> received(static_cast<std::size_t>(group.size()));
  group.all_gather(std::as_bytes(std::span(&sent, 1)), std::as_writable_bytes(std::span(received)));
  if (!all_equal(received | std::views::transform(&Envelope::facts))) compare_words(group, facts);
  if (std::ranges::any_of(received, [](const Envelope& each) { return each.bytes > kShort; })) {
    return all_gather(group, own);
  }
  std::vector<Bytes> messages;
  for (const Envelope& each : received) messages.emplace_back(each.message.begin(), each.message.begin() + each.bytes);
  return messages;
}

}  // namespace

std::vector<Bytes> all_gather_or_throw(Group& group, const std::function<Bytes()>& make, const Words& facts) {
  Bytes own;
  try {
    own = data_message(make());
  } catch (...) {
    own = failure_message(std::current_exception());
  }
  std::vector<Bytes> all = gather_messages(group, own, facts);
  for (Bytes& message : all) message = data_of(message);
  return all;
}

void agree(Group& group, const std::function<void()>& step) {
  all_gather_or_throw(group, [&] {
    step();
    return Bytes();
  });
}

void agree_on(Group& group, const std::function<Words()>& step, const Words& facts) {
  Words own;
  const auto digest_of_step = [&] {
    own = step();
    const Digest digest = digest_of(own);
    return to_bytes(std::string_view(digest.data(), digest.size()));
  };
  if (!all_equal(all_gather_or_throw(group, digest_of_step, facts))) compare_words(group, own);
}

}  // namespace shard
