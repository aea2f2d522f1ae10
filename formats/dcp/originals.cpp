#include "formats/dcp/originals.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "formats/torch/saved_zip.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/visited.h"

namespace shard::dcp {
namespace {

constexpr std::size_t kKeyPart = 2;  // The index of the key in ('storage', class, key, location, count).

/// Calls `visit` once for each persistent id that is written in place of `value`.
void visit_persistent_ids(const Value& value, const Originals& originals,
                          const std::function<void(const Value& id)>& visit) {
  VisitedSet ids;
  ValueWalk walk(value);
  while (const Value* const next = walk.next()) {
    if (next->kind == ValueKind::kPersid && ids.insert(next)) visit(*next);
    if (next->kind != ValueKind::kOpaque || !ids.insert(next)) continue;
    Value* const* behind = originals.values.find(next);
    if (behind != nullptr && *behind != nullptr) walk.add(**behind);
  }
}

/// Null if the id does not name a storage.
Value* key_of(const Value& id) {
  const std::span<Value*> parts = id.items()[0]->items();
  return parts.size() > kKeyPart && parts[kKeyPart]->is_string() ? parts[kKeyPart] : nullptr;
}

std::size_t number_of(const Value& id) { return parse_number<std::size_t>(key_of(id)->text()).value_or(0); }

}  // namespace

void keep_storages(Arena& arena, const Value& common, const OpenItem& item, Originals& originals) {
  std::vector<std::pair<Value*, std::string>> keys;
  HashMap<std::string, std::size_t> numbers;
  std::int64_t left = kMaxKeptStorages;
  bool are_kept = true;
  visit_persistent_ids(common, originals, [&](const Value& id) {
    Value* const key = key_of(id);
    are_kept = are_kept && key != nullptr;
    if (!are_kept) return;
    const auto [number, is_new] = numbers.try_emplace(key->text(), numbers.size());
    if (is_new) {
      std::optional<std::vector<std::byte>> bytes = item.storage_bytes(key->text(), left);
      are_kept = bytes.has_value();
      if (!are_kept) return;
      left -= std::ssize(*bytes);
      originals.storages.push_back(std::move(*bytes));
    }
    keys.emplace_back(id.items()[0], std::to_string(number));
  });
  if (!are_kept) originals.forget();
  for (const auto& [id, key] : keys) {
    if (are_kept) id->items()[kKeyPart] = make_string(arena, key);
  }
}

std::string saved_object(const std::string& folder, const Value& value, const Originals* originals) {
  static const Originals kNone;
  if (originals == nullptr) originals = &kNone;
  const std::string pickle = torch_save::dump(value, originals->values);
  std::vector<std::span<const std::byte>> storages(originals->storages.size());
  visit_persistent_ids(value, *originals, [&](const Value& id) {
    const std::size_t number = number_of(id);
    storages[number] = originals->storages[number];
  });
  while (!storages.empty() && storages.back().empty()) storages.pop_back();
  std::vector<std::int64_t> sizes;
  std::vector<std::uint32_t> crcs;
  for (const std::span<const std::byte> bytes : storages) {
    sizes.push_back(std::ssize(bytes));
    crcs.push_back(crc32(bytes));
  }
  const torch_save::SavedZip zip(folder, std::ssize(pickle), sizes);
  std::string content(static_cast<std::size_t>(zip.total_bytes()), '\0');
  for (const torch_save::SavedZip::Span& span : zip.frame(pickle, crcs)) {
    content.replace(static_cast<std::size_t>(span.offset), span.content.size(), span.content);
  }
  for (std::size_t i = 0; i < storages.size(); ++i) {
    content.replace(static_cast<std::size_t>(zip.data_offset(i)), storages[i].size(),
                    reinterpret_cast<const char*>(storages[i].data()), storages[i].size());
  }
  return content;
}

}  // namespace shard::dcp
