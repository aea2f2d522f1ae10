# Writes OUTPUT: the frame, the style and the scripts (a list) of the page that --html writes (apps/shardctl/html/page_parts.h).
file(READ ${FRAME} frame)
file(READ ${STYLE} style)
set(script "")
foreach(file ${SCRIPTS})
  file(READ ${file} text)
  string(APPEND script "${text}")
endforeach()
file(WRITE ${OUTPUT} "// Made of the files in apps/shardctl/html/ by cmake/embed_page.cmake.
#include \"apps/shardctl/html/page_parts.h\"

namespace shard::app {

const std::string_view kPageFrame = R\"PAGE(${frame})PAGE\";
const std::string_view kPageStyle = R\"PAGE(${style})PAGE\";
const std::string_view kPageScript = R\"PAGE(${script})PAGE\";

}  // namespace shard::app
")
