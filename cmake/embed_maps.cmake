# Writes OUTPUT: the documents of the list FILES as a table of names and texts (libshard/map/documents/builtin_maps.h).
set(rows "")
set(documents "")
foreach(file ${FILES})
  file(READ ${file} text)
  string(JSON name GET "${text}" name)
  list(APPEND documents "${name} ${file}")
endforeach()
list(SORT documents)
foreach(document ${documents})
  string(REGEX MATCH "^([^ ]*) (.*)$" parts "${document}")
  set(name "${CMAKE_MATCH_1}")
  file(READ ${CMAKE_MATCH_2} text)
  string(APPEND rows "    {\"${name}\", R\"JSON(${text})JSON\"},\n")
endforeach()
list(LENGTH documents count)
file(WRITE ${OUTPUT} "// Made of the documents in maps/ by cmake/embed_maps.cmake.
#include \"libshard/map/documents/builtin_maps.h\"

#include <algorithm>
#include <array>

namespace shard {

namespace {

constexpr std::array<BuiltinMap, ${count}> kMaps{{
${rows}}};

}  // namespace

std::span<const BuiltinMap> builtin_maps() { return kMaps; }

const BuiltinMap* find_builtin_map(std::string_view name) {
  const auto* const map = std::ranges::find(kMaps, name, &BuiltinMap::name);
  return map == kMaps.end() ? nullptr : map;
}

}  // namespace shard
")
