/// \file
/// A checkpoint in memory that a test damages and repairs with the program itself.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/checked.h"
#include "libshard/repair/lost_note.h"
#include "tests/apps/world.h"
#include "tests/support/bytes.h"
#include "tests/support/content.h"

namespace shard::testing {

inline ContentTensor filled(DType dtype, std::vector<std::int64_t> shape, char with) {
  std::int64_t count = 1;
  for (const std::int64_t side : shape) count *= side;
  const auto bytes = static_cast<std::size_t>(checked_bytes(count, dtype));
  return {dtype, std::move(shape), std::vector<std::byte>(bytes, static_cast<std::byte>(with))};
}

/// /c is the checkpoint, /d the repaired one.
struct Repair : ::testing::Test {
  app::World world;
  Content content;
  nlohmann::json result;

  /// Tensors a, b, c and d of 300, 301, 302 and 303 bytes, each of one letter in capitals.
  Repair() {
    for (const char name : {'a', 'b', 'c', 'd'}) {
      content[std::string(1, name)] = filled(DType::kUint8, {300 + name - 'a'}, static_cast<char>(name - 'a' + 'A'));
    }
  }

  void write(const std::string& format, const Layout& layout = WholeLayout{}, const std::string& path = "/c") {
    const std::unique_ptr<Reader> reader = content_reader(content);
    write_checkpoint(
        *world.fs, *reader,
        {.format = format, .destination = path, .layout = layout, .single_file = path.find('.') != path.npos});
  }

  std::string file(const std::string& path) const { return test::as_text(world.state->content(path)); }
  void put(const std::string& path, const std::string& text) { world.put(path, text); }
  void cut(const std::string& path, std::size_t bytes) { put(path, file(path).substr(0, bytes)); }
  /// Changes one byte at `offset` after the `nth` appearance of `what`.
  void flip(const std::string& path, std::string_view what, std::size_t offset = 0, int nth = 0) {
    std::string text = file(path);
    std::size_t at = text.find(what);
    for (; nth > 0 && at != text.npos; --nth) at = text.find(what, at + 1);
    ASSERT_NE(at, text.npos);
    text[at + offset] = static_cast<char>(text[at + offset] ^ 1);
    put(path, text);
  }
  void remove(const std::string& path) { world.fs->remove_all(path); }

  /// Repairs `source` to /d and expects the exit code.
  void repair(int code = 0, std::vector<std::string> more = {}, const std::string& source = "/c",
              const std::string& destination = "/d") {
    std::vector<std::string> line{"repair", source, "-o", destination, "--json"};
    line.insert(line.end(), more.begin(), more.end());
    ASSERT_EQ(world.run(line), code) << world.err << world.out;
    result = nlohmann::json::parse(world.out);
    for (const auto& loss : result.value("lost", nlohmann::json::array())) {
      EXPECT_FALSE(loss.at("file").is_string() && loss.at("file").get<std::string>().starts_with('/')) << loss;
    }
    if (code != 0) {
      EXPECT_EQ(world.fs->status(destination).kind, FileKind::kAbsent);
    }
  }

  /// Names of the tensors and objects that the result lists as lost.
  std::vector<std::string> lost() const {
    std::vector<std::string> names;
    for (const auto& loss : result.at("lost")) {
      if (!loss.at("name").is_null()) names.push_back(loss.at("name"));
    }
    std::ranges::sort(names);
    return names;
  }
  std::size_t lost_without_name() const { return result.at("lost").size() - lost().size(); }

  /// /d contains exactly these tensors, whole, and its note lists the losses.
  void expect_saved(const std::vector<std::string>& names, const std::string& destination = "/d") {
    Content wanted;
    for (const std::string& name : names) wanted[name] = content.at(name);
    const std::unique_ptr<Reader> reader = open_checkpoint(*world.fs, destination);
    EXPECT_TRUE(read_content(*reader) == wanted) << ::testing::PrintToString(names);
    const std::optional<LostNote> note = read_lost_note(reader->catalog());
    ASSERT_EQ(note.has_value(), !result.at("lost").empty());
    EXPECT_EQ(note ? note->count : 0, std::ssize(result.at("lost")));
  }
};

}  // namespace shard::testing
