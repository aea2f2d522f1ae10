#include "libshard/repair/lost_note.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/json_builder.h"

namespace shard {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 3> kWhats{"tensor", "object", "file"};  // Indexed by Loss::What.
constexpr const char* kSchema = "shardctl.lost/1";
constexpr std::size_t kMaxNoteBytes = 16 << 20;
constexpr int kMaxNoteDepth = 8;

std::string text_of(const Json& json) { return json.is_null() ? std::string() : json.get<std::string>(); }

Loss loss_of(const Json& json) {
  Loss loss;
  const auto* what = std::ranges::find(kWhats, json.at("what").get<std::string>());
  if (what != kWhats.end()) loss.what = static_cast<Loss::What>(what - kWhats.begin());
  loss.name = text_of(json.at("name"));
  loss.dtype = text_of(json.at("dtype"));
  if (!json.at("shape").is_null()) loss.shape = json.at("shape").get<std::vector<std::int64_t>>();
  for (const Json& box : json.at("boxes")) {
    loss.boxes.push_back(
        {box.at("offsets").get<std::vector<std::int64_t>>(), box.at("sizes").get<std::vector<std::int64_t>>()});
  }
  loss.file = text_of(json.at("file"));
  loss.why = text_of(json.at("why"));
  return loss;
}

Error malformed(const char* why) {
  return Error(ErrorCode::kCorruption, "cannot read a repair's note about its losses")
      .because(why)
      .of_kind(FindingKind::kBadHeader);
}

}  // namespace

std::string_view name_of(Loss::What what) { return kWhats[static_cast<std::size_t>(what)]; }

void write_loss(JsonWriter& json, const Loss& loss) {
  json.key("what"), json.string(name_of(loss.what));
  json.key("name"), json.string_or_null(loss.name);
  json.key("dtype"), json.string_or_null(loss.dtype);
  json.key("shape"), loss.shape ? json.numbers(*loss.shape) : json.null();
  json.key("boxes"), json.objects(loss.boxes, [&](const LostBox& box) {
    json.key("offsets"), json.numbers(box.offsets);
    json.key("sizes"), json.numbers(box.sizes);
  });
  json.key("file"), json.string_or_null(loss.file);
  json.key("why"), json.string(loss.why);
}

std::string dump_lost_note(std::span<const Loss> losses, std::int64_t unlisted) {
  std::string note;
  JsonWriter json(note, {JsonEscapes::kAscii, true});
  json.begin_object();
  json.key("schema"), json.string(kSchema);
  json.key("count"), json.number(checked_add(std::ssize(losses), unlisted));
  json.key("lost"), json.objects(losses.first(std::min(losses.size(), kMostNoted)),
                                 [&](const Loss& loss) { write_loss(json, loss); });
  json.end_object();
  return note;
}

std::optional<LostNote> read_lost_note(const Catalog& catalog) {
  const auto text = catalog.metadata.find(kLostNote);
  if (text == catalog.metadata.end()) return std::nullopt;
  if (text->second.size() > kMaxNoteBytes) throw malformed("it is larger than 16 MiB");
  try {
    const Json json = parse_json<Json>(text->second, {.depth = kMaxNoteDepth},
                                       [](const std::string& what) { return malformed(what.c_str()); });
    if (json.at("schema").get<std::string>() != kSchema) throw malformed("it has an unknown schema");
    LostNote note;
    for (const Json& loss : json.at("lost")) note.losses.push_back(loss_of(loss));
    note.count = std::max(json.at("count").get<std::int64_t>(), std::ssize(note.losses));
    return note;
  } catch (const Json::exception& error) {
    throw malformed(error.what());
  }
}

}  // namespace shard
