#include "libshard/io/memory_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/io/paths.h"

namespace shard {

namespace {

void collect(const std::string& folder, const Node& node, std::vector<std::string>& out) {
  for (const auto& [name, entry] : node.entries) {
    const std::string path = folder + "/" + name;
    out.push_back(path);
    collect(path, *entry, out);
  }
}

}  // namespace

void MemoryState::Impl::tick(ErrorCode code, const std::string& path, const std::string& line) {
  const std::int64_t call = calls++;
  log.push_back(line);
  if (fail_call >= 0 && (call == fail_call || (persistent && call > fail_call))) {
    throw Error(code, fmt::format("injected failure of call {} ({})", call, line)).in_file(path);
  }
}

NodePtr MemoryState::Impl::find(const std::string& path) const {
  NodePtr node = root;
  for (const std::string& part : parts_of(path)) {
    const auto entry = node->entries.find(part);
    if (entry == node->entries.end()) return nullptr;
    node = entry->second;
  }
  return node;
}

NodePtr MemoryState::Impl::add(Node& folder, const std::string& path, bool is_folder) {
  const auto [entry, is_new] = folder.entries.try_emplace(base_name(path));
  if (!is_new) throw Error(ErrorCode::kExists, "it exists already").in_file(path);
  entry->second = std::make_shared<Node>(Node{is_folder, ++last_inode, {}, {}, {}, {}});
  return entry->second;
}

MemoryState::MemoryState() : impl(std::make_unique<Impl>()) {}
MemoryState::~MemoryState() = default;

void MemoryState::fail_at(std::int64_t call, bool persistent) {
  const std::scoped_lock lock(impl->mutex);
  impl->fail_call = call;
  impl->persistent = persistent;
}

std::int64_t MemoryState::calls() const {
  const std::scoped_lock lock(impl->mutex);
  return impl->calls;
}

std::vector<std::string> MemoryState::log() const {
  const std::scoped_lock lock(impl->mutex);
  return impl->log;
}

std::vector<std::string> MemoryState::paths() const {
  const std::scoped_lock lock(impl->mutex);
  std::vector<std::string> all;
  collect("", *impl->root, all);
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<std::byte> MemoryState::content(const std::string& path) const {
  const std::scoped_lock lock(impl->mutex);
  const NodePtr node = impl->find(path);
  if (node == nullptr || node->is_folder) throw Error(ErrorCode::kNotFound, "no such file").in_file(path);
  return node->content;
}

void MemoryState::put(const std::string& path, std::span<const std::byte> content) {
  const std::scoped_lock lock(impl->mutex);
  NodePtr node = impl->root;
  for (const std::string& part : parts_of(path)) {
    NodePtr& entry = node->entries[part];
    if (entry == nullptr) entry = std::make_shared<Node>(Node{true, ++impl->last_inode, {}, {}, {}, {}});
    node = entry;
  }
  node->is_folder = false;
  node->content.assign(content.begin(), content.end());
  node->modified_ns = ++Impl::changes;
}

int MemoryState::open_files() const { return impl->open_files; }

void MemoryState::without_exchange(bool missing) {
  const std::scoped_lock lock(impl->mutex);
  impl->no_exchange = missing;
}

}  // namespace shard
