#include "formats/torch/saved_reader.h"

#include <fmt/format.h>

#include <string>

#include "libshard/core/hash_table.h"
#include "libshard/io/paths.h"

namespace shard::torch_save {

namespace {

std::string_view suffix_of(std::string_view name) { return name.substr(std::min(name.rfind('.'), name.size())); }

}  // namespace

std::vector<ExchangedFile> SavedReader::exchanged_files() const {
  HashMap<std::string_view, std::uint32_t> numbers;
  for (std::uint32_t i = 0; i < catalog_.files.size(); ++i) numbers.try_emplace(catalog_.files[i].path, i);
  std::vector<ExchangedFile> exchanged;
  for (std::uint32_t i = 0; i < catalog_.files.size(); ++i) {
    const std::string& path = catalog_.files[i].path;
    const std::string name = base_name(path), saved = fmt::format("{}{}", files_.saved_as(i), suffix_of(name));
    if (name == saved) continue;
    const std::uint32_t* const other = numbers.find(path.substr(0, path.size() - name.size()) + saved);
    if (other == nullptr) continue;
    exchanged.push_back({i, *other,
                         Error(ErrorCode::kCorruption, "the file was saved under another rank's name")
                             .in_file(path)
                             .of_kind(FindingKind::kRankMismatch)
                             .expected(name)
                             .found(saved)
                             .because("files were swapped, or one was copied over another")});
  }
  return exchanged;
}

}  // namespace shard::torch_save
