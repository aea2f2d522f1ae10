#include "apps/shardctl/session/device.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>

#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"
#include "libshard/device/device_system.h"

namespace shard::app {
namespace {

constexpr std::string_view kNumbered = "cuda:";

/// The N in "cuda:N".
std::optional<int> number_in(std::string_view text) {
  if (!text.starts_with(kNumbered)) return std::nullopt;
  text.remove_prefix(kNumbered.size());
  return parse_natural<int>(text);
}

}  // namespace

std::string check_device(const std::string& text) {
  if (text == "cpu" || text == "cuda" || number_in(text)) return {};
  return text + " is not cpu, cuda or cuda:N";
}

std::unique_ptr<Device> open_device(const Session& session, const RunRequest& run) {
  if (run.device == "cpu") return nullptr;
  const DeviceWish wish{.number = number_in(run.device),
                        .local_rank = run.local_ranks > 0 ? session.group->rank() : session.launch.local_rank,
                        .local_ranks = session.ranks_here};
  try {
    return shard::open_device(wish);
  } catch (Error& error) {
    if (error.code() == ErrorCode::kUnsupported) {
      error.hint(fmt::format("{}{}run without a GPU: --device cpu", error.hint(), error.hint().empty() ? "" : "; or "));
    }
    if (error.code() == ErrorCode::kInvalidArgument) error.hint("omit the number: --device cuda");
    throw;
  }
}

}  // namespace shard::app
