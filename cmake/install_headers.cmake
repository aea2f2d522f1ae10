# Installs the headers for programs in DESTINATION: those of libshard, of shardtorch, and of formats' own folder and its export. A header
# whose first comment says "Inside FOLDER only" is not installed; scripts/check_includes.py enforces it.
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
