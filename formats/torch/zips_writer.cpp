#include "formats/torch/zips_writer.h"

#include <span>
#include <utility>

#include "libshard/io/file_writer.h"

namespace shard::torch_save {

void ZipsWriter::place_zip(Catalog& target, const std::string& name) {
  if (zips_.empty()) keys_.assign(target.storages.size(), kNoIndex);
  const auto file = static_cast<std::uint32_t>(zips_.size());
  zips_.emplace_back(keys_).place(target, file, name, pickle_of(target, file));
}

void ZipsWriter::place_text(Catalog& target, std::string path, std::string content) {
  target.files.push_back({std::move(path), std::ssize(content), -1});
  texts_.push_back(std::move(content));
}

void ZipsWriter::begin_file(const Catalog& target, std::uint32_t file, FileWriter& to) {
  if (file < zips_.size()) zips_[file].begin(to, pickle_of(target, file));
}

std::unique_ptr<StorageFrames> ZipsWriter::frames(const Catalog& target) const { return frames_of(target, zips_); }

void ZipsWriter::finish_file(const Catalog&, std::uint32_t file, const Checksums& checksums, FileWriter& to) {
  if (file < zips_.size()) return zips_[file].finish(checksums, to);
  to.write_at(0, std::as_bytes(std::span(texts_[file - zips_.size()])));
}

}  // namespace shard::torch_save
