# Installs the headers for programs below DESTINATION: those of libshard, of shardtorch, and of formats' own folder and export. A header
# whose first comment says "Inside FOLDER only" stays behind, as scripts/check_includes.py holds it to.
#
#   in: SOURCE, DESTINATION
file(GLOB_RECURSE headers RELATIVE ${SOURCE} ${SOURCE}/libshard/*.h ${SOURCE}/shardtorch/*.h)
file(GLOB formats RELATIVE ${SOURCE} ${SOURCE}/formats/*.h ${SOURCE}/formats/export/*.h)
list(FILTER headers EXCLUDE REGEX "/gloo_stand_in/")
foreach(header ${headers} ${formats})
  file(READ ${SOURCE}/${header} begin LIMIT 1000)
  string(REGEX REPLACE "#pragma once.*" "" begin "${begin}")
  if(NOT begin MATCHES "Inside[^.]* only")
    cmake_path(GET header PARENT_PATH folder)
    file(INSTALL ${SOURCE}/${header} DESTINATION ${DESTINATION}/${folder})
  endif()
endforeach()
