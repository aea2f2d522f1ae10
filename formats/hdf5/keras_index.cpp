#include "formats/hdf5/keras_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "formats/parts/hf_index/weight_map.h"
#include "formats/parts/json/json_cursor.h"
#include "libshard/core/error.h"

namespace shard::hdf5 {

namespace {

struct NamedEntry {
  std::string path, file;
};

std::string text_of(JsonCursor& json, std::string_view raw) {
  return json.has_escapes() ? json.decode(raw) : std::string(raw);
}

class IndexReader {
 public:
  IndexReader(JsonCursor& json, std::string file) : json_(json), file_(std::move(file)) {}

  std::vector<NamedEntry> read() {
    hf_index::walk_index(json_, [this] { read_map(); });
    return std::move(entries_);
  }

 private:
  void read_map() {
    json_.enter_object();
    bool is_first = true;
    std::string_view name;
    std::string decoded;
    while (json_.next_name(name, decoded, is_first)) {
      const std::string path(name.substr(std::min(name.find_first_not_of('/'), name.size())));
      if (!json_.at_array()) {
        add(path, text_of(json_, json_.string()));
        continue;
      }
      json_.enter_array();
      bool is_first_file = true;
      while (json_.next_element(is_first_file)) add(path, text_of(json_, json_.string()));
    }
  }

  void add(const std::string& path, std::string file) {
    if (!hf_index::is_safe_path(file)) {
      throw Error(ErrorCode::kCorruption, fmt::format("the index places '{}' in '{}'", path, file))
          .in_file(file_)
          .because(hf_index::kMustBeBelow)
          .of_kind(FindingKind::kBadHeader);
    }
    entries_.push_back({path, std::move(file)});
  }

  JsonCursor& json_;
  std::string file_;
  std::vector<NamedEntry> entries_;
};

}  // namespace

std::string_view without_model_name(std::string_view path) {
  const std::size_t slash = path.find('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

KerasIndex read_keras_index(const RandomReader& file) {
  Arena arena(std::make_shared<Budget>());
  std::vector<std::byte> text = read_metadata(file, 0, file.size(), arena);
  text.push_back(std::byte{0});
  const char* const begin = reinterpret_cast<const char*>(text.data());
  JsonCursor json(begin, begin + file.size(), file.name(), FindingKind::kBadHeader);
  KerasIndex index;
  std::vector<NamedEntry> entries = IndexReader(json, file.name()).read();
  for (const NamedEntry& entry : entries) index.files.push_back(entry.file);
  std::ranges::sort(index.files);
  const auto repeated = std::ranges::unique(index.files);
  index.files.erase(repeated.begin(), repeated.end());
  for (NamedEntry& entry : entries) {
    const auto at = std::ranges::lower_bound(index.files, entry.file);
    index.entries.push_back({std::move(entry.path), static_cast<std::uint32_t>(at - index.files.begin())});
  }
  return index;
}

}  // namespace shard::hdf5
