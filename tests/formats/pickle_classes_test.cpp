// Plain classes and enums of DeepSpeed, Megatron-Core and Python: data like any other. tests/data/pickle/make.py made
// the pickles.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "libshard/core/value_equality.h"
#include "tests/formats/pickle_text.h"

namespace shard {
namespace {

using namespace shard::testing;

struct Pickled {
  std::string type, how, bytes;  ///< `how`: "object", "member" (by getattr) or "class".
};

std::vector<Pickled> read_classes() {
  std::ifstream file(std::string(SHARD_TEST_DATA) + "/pickle/classes.txt");
  std::vector<Pickled> all;
  std::string hex;
  for (Pickled each; file >> each.type >> each.how >> hex;) {
    each.bytes.clear();
    for (std::size_t i = 0; i < hex.size(); i += 2) {
      each.bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    all.push_back(each);
  }
  return all;
}

TEST(PickleClasses, AreReadAsWhatTheyAre) {
  const std::vector<Pickled> all = read_classes();
  EXPECT_EQ(all.size(), 32U);
  for (const Pickled& each : all) {
    Arena arena;
    const Value& value = *load_text(arena, each.bytes);
    if (each.how == "class") {
      EXPECT_EQ(value.kind, ValueKind::kGlobal) << each.type;
      EXPECT_EQ(std::string(value.module()) + "." + std::string(value.text()), each.type);
    } else {
      EXPECT_EQ(value.kind, ValueKind::kCall) << each.type;
      EXPECT_EQ(type_name(value), each.type) << each.how;
    }
  }
}

TEST(PickleClasses, AreWrittenAsTheyWereRead) {
  for (const Pickled& each : read_classes()) {
    Arena arena;
    const Value& value = *load_text(arena, each.bytes);
    const std::string written = dump_text(value, 2);
    EXPECT_TRUE(ValueEquality().is_equal(value, *load_text(arena, written))) << each.type;
    EXPECT_EQ(dump_text(*load_text(arena, written), 2), written) << each.type;
  }
}

TEST(PickleClasses, KeepTheirAttributes) {
  for (const Pickled& each : read_classes()) {
    if (!each.type.ends_with("fragment_address")) continue;
    Arena arena;
    const Value& state = *load_text(arena, each.bytes)->state();
    EXPECT_EQ(find_key(state, "numel")->number, 12);
    EXPECT_EQ(find_key(state, "start")->number, 4);
  }
}

TEST(PickleClasses, MembersInLowerCaseAreOfKnownEnumsOnly) {
  const auto member = [](const std::string& module, const std::string& name) {
    return "\x80\x02"s + "c__builtin__\ngetattr\nc" + module + "\n" + name + "\nX\x05\0\0\0flash\x86R."s;
  };
  EXPECT_EQ(error_of(member("megatron.core.transformer.enums", "AttnBackend")).code(), ErrorCode::kInterrupted);
  EXPECT_EQ(error_of(member("pathlib", "Path")).code(), ErrorCode::kCorruption);
  EXPECT_EQ(error_of(member("argparse", "Namespace")).code(), ErrorCode::kCorruption);
}

TEST(PickleClasses, NeighboursInTheirModulesAreRefused) {
  for (const auto& [module, name] : {std::pair("_io", "FileIO"),
                                     {"_io", "open"},
                                     {"signal", "signal"},
                                     {"types", "FunctionType"},
                                     {"types", "CodeType"},
                                     {"megatron.core.optimizer", "get_megatron_optimizer"},
                                     {"deepspeed.runtime.zero.config", "read_zero_config_deprecated"}}) {
    EXPECT_FALSE(pickle::is_known_global(module, name)) << module << "." << name;
  }
}

}  // namespace
}  // namespace shard
