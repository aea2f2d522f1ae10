#include "libshard/io/local_disk.h"

#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

std::unique_ptr<LocalFolder> folder_of(LocalDisk& disk, const std::string& path) {
  std::unique_ptr<LocalFolder> folder = disk.open_folder(parent_path(path));
  if (folder == nullptr) throw Error(ErrorCode::kResource, "cannot write: no such folder").in_file(parent_path(path));
  return folder;
}

}  // namespace

std::unique_ptr<FileWriter> LocalDisk::create(const std::string& path) {
  return folder_of(*this, path)->create(base_name(path));
}

void LocalDisk::make_folder(const std::string& path) { folder_of(*this, path)->make_folder(base_name(path)); }

void LocalDisk::rename_new(const std::string& from, const std::string& to) {
  const auto target = folder_of(*this, to);
  folder_of(*this, from)->rename_new(base_name(from), *target, base_name(to));
}

void LocalDisk::remove_all(const std::string& path) { folder_of(*this, path)->remove_all(base_name(path)); }

}  // namespace shard
