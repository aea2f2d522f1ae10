#include "apps/shardctl/session.h"

#include <fmt/format.h>

#include <algorithm>

namespace shard::app {

std::string rank_label(const Session& session) {
  const Group& group = *session.group;
  return group.size() == 1 ? std::string() : fmt::format("rank {} of {}", group.rank(), group.size());
}

std::int64_t max_memory_bytes(const Session& session) { return parse_size(session.common.max_memory, "--max-memory"); }

int worker_count(const Session& session) {
  return session.common.threads > 0 ? session.common.threads : std::max(1, usable_cpus() / session.ranks_here);
}

bool colours_errors(const Session& session) {
  if (session.common.color != "auto") return session.common.color == "always";
  if (!session.err_is_terminal || !session.env) return false;
  const auto no_color = session.env("NO_COLOR");
  return (!no_color || no_color->empty()) && session.env("TERM").value_or("") != "dumb";
}

void note(const Session& session, const std::string& text) {
  if (!session.common.quiet) session.err << "shardctl: " << printable(text) << '\n';
}

void warn(const Session& session, const std::string& text) { note(session, "warning: " + text); }

std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool c1 = c == 0xC2 && i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xE0) == 0x80;
    if (c1) {  // U+0080 to U+009F: control characters too, for some terminals.
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[++i]));
    } else if (c < 0x20 || c == 0x7F) {
      result += fmt::format("\\x{:02x}", c);
    } else {
      result += text[i];
    }
  }
  return result;
}

}  // namespace shard::app
