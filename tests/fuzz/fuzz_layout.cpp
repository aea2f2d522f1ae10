#include "libshard/map/documents/document.h"
#include "libshard/map/documents/layout_document.h"
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shard;
  try {
    const MeshLayout layout = parse_layout_document(fuzz::as_text(data, size), "fuzz");
    for (const std::size_t number : layout.rules_for("layers.0.weight")) {
      const MeshLayout::Rule& rule = layout.rules[number];
      const std::int64_t shape[] = {6, 4};
      std::int64_t ranks = 1;
      for (const MeshAxis& axis : layout.mesh) ranks *= axis.size;
      if (ranks <= 64) place(shape, layout.mesh, rule.placements, rule.order);
    }
  } catch (const Error&) {
  }
  try {
    parse_map_document(fuzz::as_text(data, size), "fuzz");
  } catch (const Error&) {
  }
  return 0;
}
