# Writes OUTPUT: the frame, the style and the scripts (a list) of the page that --html writes (apps/shardctl/html/html_page.cpp).
file(READ ${FRAME} frame)
file(READ ${STYLE} style)
set(script "")
foreach(file ${SCRIPTS})
  file(READ ${file} text)
  string(APPEND script "${text}")
endforeach()
file(WRITE ${OUTPUT} "// Made of the files in apps/shardctl/html/ by cmake/embed_page.cmake.
#include <string_view>

namespace shard::app {

extern const std::string_view kPageFrame, kPageStyle, kPageScript;
const std::string_view kPageFrame = R\"PAGE(${frame})PAGE\";
const std::string_view kPageStyle = R\"PAGE(${style})PAGE\";
const std::string_view kPageScript = R\"PAGE(${script})PAGE\";

}  // namespace shard::app
")
