#include "libshard/io/scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "libshard/io/posix_file.h"

namespace shard {

namespace {

using posix::Descriptor;

/// On file systems without unnamed files, creates a file and removes its name at once.
Descriptor open_unnamed(const std::string& folder) {
  Descriptor file = posix::open_at(AT_FDCWD, folder, O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
  if (file.valid() || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return file;
  std::string path = folder + "/shardctl-XXXXXX";
  file = Descriptor(::mkostemp(path.data(), O_CLOEXEC));
  if (file.valid()) ::unlink(path.c_str());
  return file;
}

}  // namespace

ScratchFile make_scratch_file(std::int64_t bytes) {
  const char* const given = std::getenv("TMPDIR");
  const std::string folder = given != nullptr && *given != '\0' ? given : "/var/tmp";
  Descriptor file = open_unnamed(folder);
  if (!file.valid()) posix::fail_writing(folder, "cannot create a temporary file", errno);
  Descriptor again(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0));
  if (!again.valid()) posix::fail_writing(folder, "cannot open a temporary file", errno);
  ScratchFile made;
  made.writer = posix::make_writer(std::move(file), folder);
  made.writer->allocate(bytes);
  made.reader = posix::make_reader(std::move(again), folder);
  return made;
}

}  // namespace shard
