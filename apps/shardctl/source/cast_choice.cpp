#include "apps/shardctl/source/cast_choice.h"

#include <fmt/format.h>

#include "apps/shardctl/request/command_text.h"
#include "libshard/catalog/selection/casts.h"

namespace shard::app {

std::vector<std::string> checked_casts(const Session& session, const SelectionOptions& select, const OpenSource& source,
                                       std::span<const SelectedTensor> tensors, bool converts_all) {
  if (!converts_all && select.cast.empty()) return {};
  try {
    return check_casts(source.catalog(), tensors, facts_beside(source_store(session), source),
                       converts_all ? LoneFloats::kRefuse : LoneFloats::kConvert);
  } catch (const QuantizedCast& refused) {
    Error error(refused);
    if (refused.globs().empty()) throw Error(error.hint("leave such tensors as they are with --cast 'GLOB=keep'"));
    std::string words;
    for (const std::string& glob : refused.globs()) {
      words += fmt::format("{}--cast {}", words.empty() ? "" : " ", shell_quoted(glob + "=keep"));
    }
    throw Error(error.hint(repeat_command(session.command.arguments, words)));
  }
}

}  // namespace shard::app
