#include "libshard/io/local_part.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <sstream>
#include <type_traits>

#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"
#include "libshard/io/local_left.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

/// Whether a file of a disk has more than one name (hard links).
bool has_other_names(const FileWriter& file) {
  struct stat info {};
  return file.descriptor() >= 0 && ::fstat(file.descriptor(), &info) == 0 && info.st_nlink > 1;
}

/// Writing to it would change a file of the same bytes elsewhere. No run of this program leaves one.
Error linked(const LocalFolder& folder, const std::string& name) {
  return Error(ErrorCode::kExists, "cannot resume: a file of the interrupted run has a second name (a hard link)")
      .in_file(join_path(folder.path(), name))
      .hint("start over without resuming, which removes what the interrupted run left behind");
}

class LocalPart final : public OutputPart {
 public:
  LocalPart(std::unique_ptr<LocalFolder> sibling, std::string name, const Staged& staged, bool sync)
      : sibling_(std::move(sibling)),
        name_(std::move(name)),
        is_folder_(staged.is_folder),
        is_taken_up_(staged.is_taken_up),
        sync_(sync) {}

  FileWriter& create(const OutputFile& file) override {
    const auto make = [this](LocalFolder& folder, const std::string& name) {
      if (!is_taken_up_) return folder.create(name);
      if (folder.status_of(name).kind != FileKind::kFile) return folder.create(name);
      std::unique_ptr<FileWriter> there = folder.open_existing(name);
      if (has_other_names(*there)) throw linked(folder, name);
      return there;
    };
    FileWriter& writer = keep(file.is_beside ? make(*sibling_, name_ + file.path) : at(file.path, make));
    writer.allocate(file.bytes);
    return writer;
  }

  FileWriter& open(const std::string& path) override {
    return keep(at(path, [](LocalFolder& folder, const std::string& name) { return folder.open_existing(name); }));
  }

  void finish() override {
    for (const auto& writer : writers_) {
      if (sync_) writer->sync();
      writer->close();
    }
    writers_.clear();
  }

  std::unique_ptr<FileWriter> create_note(const std::string& name) override {
    return sibling_->create(note_file(name_, name));
  }
  std::vector<OutputNote> notes() override {
    return is_taken_up_ ? read_notes(*sibling_, name_, kLargestNote) : std::vector<OutputNote>();
  }

 private:
  FileWriter& keep(std::unique_ptr<FileWriter> writer) {
    if (sync_) writer->expect_sync();
    writers_.push_back(std::move(writer));
    return *writers_.back();
  }
  /// Calls `open` with the folder of that file and its name there.
  template <class Open>
  std::invoke_result_t<Open, LocalFolder&, std::string> at(const std::string& path, const Open& open) {
    if (!is_folder_) return open(*sibling_, name_);
    std::unique_ptr<LocalFolder> folder = sibling_->open_folder(name_);
    std::size_t begin = 0;
    for (std::size_t end = path.find('/'); end != std::string::npos; end = path.find('/', begin)) {
      folder = folder->open_folder(path.substr(begin, end - begin));
      begin = end + 1;
    }
    return open(*folder, path.substr(begin));
  }

  const std::unique_ptr<LocalFolder> sibling_;
  const std::string name_;
  const bool is_folder_, is_taken_up_, sync_;
  std::vector<std::unique_ptr<FileWriter>> writers_;
};

}  // namespace

std::string this_host() {
  std::array<char, 256> name{"@"};
  ::gethostname(name.data() + 1, name.size() - 2);
  return name.data();
}

std::vector<std::byte> Staged::token() const {
  const std::string text = fmt::format("{} {} {} {} {}\n{}", int{is_folder}, int{is_taken_up}, status.device,
                                       status.inode, this_host(), sibling);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Staged Staged::of_token(std::span<const std::byte> token, std::uint64_t device_of_parent) {
  std::istringstream text(std::string(reinterpret_cast<const char*>(token.data()), token.size()));
  Staged staged;
  std::string host;
  text >> staged.is_folder >> staged.is_taken_up >> staged.status.device >> staged.status.inode >> host;
  text.ignore();
  std::getline(text, staged.sibling, '\0');
  if (staged.sibling.empty()) throw Error(ErrorCode::kPeer, "cannot find another rank's output: it has no place");
  if (host != this_host()) staged.status.device = device_of_parent;
  staged.status.kind = FileKind::kFolder;
  return staged;
}

void fail_swapped(const LocalFolder& parent, const std::string& sibling) {
  throw Error(ErrorCode::kResource, "cannot write: the folder of the staged output was moved or replaced")
      .in_file(join_path(parent.path(), sibling))
      .because("another process renamed it in its parent folder while the output was being written");
}

std::unique_ptr<OutputPart> make_local_part(std::unique_ptr<LocalFolder> sibling, const std::string& name,
                                            const Staged& staged, bool sync) {
  return std::make_unique<LocalPart>(std::move(sibling), name, staged, sync);
}

}  // namespace shard
