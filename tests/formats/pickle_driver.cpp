// Reads a pickle on stdin and writes it again on stdout, at the protocol that the first argument names. Refusals go to
// stderr with exit 1. For tests/live/pickle_against_python.py.

#include <fmt/format.h>

#include <cstdlib>
#include <iostream>
#include <iterator>
#include <string>

#include "formats/parts/pickle/pickle.h"
#include "libshard/core/error.h"

int main(int argc, char** argv) {
  const int protocol = argc > 1 ? std::atoi(argv[1]) : 2;
  const bool any_global = argc > 2 && std::string_view(argv[2]) == "any";
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  try {
    shard::Arena arena;
    shard::pickle::LoadOptions options;
    options.allow = [&](std::string_view module, std::string_view name) {
      return any_global || shard::pickle::is_known_global(module, name);
    };
    shard::pickle::DumpOptions dump_options;
    dump_options.protocol = protocol;
    shard::pickle::Dumper dumper(std::move(dump_options));
    dumper.value(*shard::pickle::load(arena, std::as_bytes(std::span(input)), options));
    std::cout << dumper.finish();
    return 0;
  } catch (const shard::Error& error) {
    fmt::print(stderr, "{} {}: {}\n", shard::code_name(error.code()),
               error.kind() ? shard::kind_name(*error.kind()) : "", error.what());
    return 1;
  }
}
