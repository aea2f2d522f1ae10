// place_driver: reads lines "SHAPE;MESH;PLACEMENTS" ("8,3;a=2,b=2;_S(0,2)/S(0)", an empty shape for none) and prints
// one JSON line each: for every rank, in order, [local sizes, [[offsets, sizes, local offsets] of each box], replica].
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "libshard/catalog/layouts/layout.h"

namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

std::string to_json(const shard::RankPiece& piece) {
  std::vector<std::string> boxes;
  for (std::size_t i = 0; i < piece.boxes.size(); ++i) {
    boxes.push_back(fmt::format("[[{}], [{}], [{}]]", fmt::join(piece.boxes[i].offsets(), ", "),
                                fmt::join(piece.boxes[i].sizes(), ", "), fmt::join(piece.local_offsets[i], ", ")));
  }
  return fmt::format("[[{}], [{}], {}]", fmt::join(piece.local_sizes, ", "), fmt::join(boxes, ", "), piece.replica);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const std::vector<std::string> fields = split(line, ';');
    if (fields.size() != 3) return 2;
    std::vector<std::int64_t> shape;
    for (const std::string& n : split(fields[0], ',')) shape.push_back(std::stoll(n));
    std::vector<shard::Placement> placements;
    for (const std::string& text : split(fields[2], '/')) placements.push_back(shard::parse_placement(text));
    std::vector<std::string> ranks;
    for (const auto& piece : shard::place(shape, shard::parse_mesh(fields[1]), placements))
      ranks.push_back(to_json(piece));
    std::cout << fmt::format("[{}]\n", fmt::join(ranks, ", "));
  }
}
