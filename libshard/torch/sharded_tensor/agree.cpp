#include "libshard/torch/sharded_tensor/agree.h"

#include <exception>
#include <string>
#include <string_view>

#include "libshard/core/error.h"
#include "libshard/dist/wire.h"
#include "libshard/torch/sharded_tensor/errors.h"

namespace shard {

namespace {

enum class Answer : std::int64_t { kData, kValue, kIndex, kType, kNotImplemented, kAttribute, kRuntime, kShard };

void write(WireWriter& out, Answer answer, std::string_view text) {
  out.number(static_cast<std::int64_t>(answer));
  out.text(text);
}

Bytes data_message(std::span<const std::byte> bytes) {
  WireWriter out;
  write(out, Answer::kData, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
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
  }
  return out.take();
}

/// The data of a message; what a failing rank wrote is thrown.
Bytes data_of(std::span<const std::byte> message) {
  WireReader in(message);
  const auto answer = static_cast<Answer>(in.number());
  const std::string text = in.text();
  TORCH_CHECK_VALUE(answer != Answer::kValue, text);
  TORCH_CHECK_INDEX(answer != Answer::kIndex, text);
  TORCH_CHECK_TYPE(answer != Answer::kType, text);
  TORCH_CHECK_NOT_IMPLEMENTED(answer != Answer::kNotImplemented, text);
  SHARD_CHECK_ATTRIBUTE(answer != Answer::kAttribute, text);
  if (answer == Answer::kShard) throw in.error();
  TORCH_CHECK(answer == Answer::kData, text);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

std::vector<Bytes> all_gather_or_throw(Group& group, const std::function<Bytes()>& make) {
  Bytes own;
  try {
    own = data_message(make());
  } catch (...) {
    own = failure_message(std::current_exception());
  }
  std::vector<Bytes> all = all_gather(group, own);
  for (Bytes& message : all) message = data_of(message);
  return all;
}

void agree(Group& group, const std::function<void()>& step) {
  all_gather_or_throw(group, [&] {
    step();
    return Bytes();
  });
}

}  // namespace shard
