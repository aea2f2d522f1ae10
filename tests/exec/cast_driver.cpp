// cast_driver FROM TO: converts raw elements from stdin to stdout and prints the number of overflows on stderr.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "libshard/exec/cast.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto from = shard::dtype_of_name(argv[1]);
  const auto to = shard::dtype_of_name(argv[2]);
  if (!from || !to) return 2;
  if (!shard::can_cast(*from, *to)) return 8;
  const std::string in{std::istreambuf_iterator<char>(std::cin), {}};
  const std::size_t elements = in.size() / static_cast<std::size_t>(shard::element_bytes(*from));
  std::vector<std::byte> out(elements * static_cast<std::size_t>(shard::element_bytes(*to)));
  const std::int64_t overflows = shard::cast(*from, std::as_bytes(std::span(in)), *to, out);
  std::fwrite(out.data(), 1, out.size(), stdout);
  std::fprintf(stderr, "%lld\n", static_cast<long long>(overflows));
  return 0;
}
