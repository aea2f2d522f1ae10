#include "libshard/io/staged.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <sstream>

#include "libshard/core/error.h"

namespace shard {

std::string this_host() {
  std::array<char, 256> name{"@"};
  ::gethostname(name.data() + 1, name.size() - 2);
  return name.data();
}

std::vector<std::byte> Staged::token() const {
  const std::string text =
      fmt::format("{} {} {} {}\n{}", int{is_folder}, status.device, status.inode, this_host(), sibling);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Staged Staged::of_token(std::span<const std::byte> token, std::uint64_t device_of_parent) {
  std::istringstream text(std::string(reinterpret_cast<const char*>(token.data()), token.size()));
  Staged staged;
  std::string host;
  text >> staged.is_folder >> staged.status.device >> staged.status.inode >> host;
  text.ignore();
  std::getline(text, staged.sibling, '\0');
  if (staged.sibling.empty()) throw Error(ErrorCode::kPeer, "cannot find another rank's output: it has no place");
  if (host != this_host()) staged.status.device = device_of_parent;
  staged.status.kind = FileKind::kFolder;
  return staged;
}

}  // namespace shard
