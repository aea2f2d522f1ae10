#include "shardtorch/rpc/meeting.h"

#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "shardtorch/errors.h"

namespace shard {

namespace {

std::vector<std::uint8_t> to_store(std::span<const std::byte> bytes) {
  const auto* const begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return {begin, begin + bytes.size()};
}

Bytes from_store(const std::vector<std::uint8_t>& bytes) {
  const auto* const begin = reinterpret_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

}  // namespace

Meeting::Meeting(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout)
    : rank_(rank), size_(size), timeout_(timeout) {
  const std::int64_t number = store.add("meetings/" + std::to_string(rank), 1);
  store_ = c10::make_intrusive<c10d::PrefixStore>("meeting/" + std::to_string(number), store.clone());
  store_->setTimeout(timeout);
}

std::vector<std::string> Meeting::keys_of(const std::string& step) const {
  std::vector<std::string> keys;
  for (int worker = 0; worker < size_; ++worker) keys.push_back(step + "/" + std::to_string(worker));
  return keys;
}

void Meeting::wait_for(const std::vector<std::string>& keys) const {
  try {
    store_->wait(keys, timeout_);
  } catch (const c10::Error&) {
    std::string missing;
    for (std::size_t worker = 0; worker < keys.size(); ++worker) {
      if (!store_->check({keys[worker]})) missing += (missing.empty() ? "" : ", ") + std::to_string(worker);
    }
    if (missing.empty()) throw;
    SHARD_CHECK(false, "RPC: worker ", missing, " did not come within ", timeout_.count(), " ms");
  }
}

std::vector<Bytes> Meeting::all_gather(std::span<const std::byte> own) {
  const std::string step = "gather/" + std::to_string(calls_++);
  const std::vector<std::string> keys = keys_of(step);
  store_->set(keys[static_cast<std::size_t>(rank_)], to_store(own));
  wait_for(keys);
  std::vector<Bytes> all;
  for (const std::string& key : keys) all.push_back(from_store(store_->get(key)));
  if (store_->add(step + "/read", 1) == size_) {
    for (const std::string& key : keys) store_->deleteKey(key);
    store_->deleteKey(step + "/read");
  }
  return all;
}

void Meeting::leave() {
  const std::vector<std::string> keys = keys_of("left");
  store_->set(keys[static_cast<std::size_t>(rank_)], to_store({}));
  if (rank_ == 0) wait_for(keys);
}

}  // namespace shard
