# Offers folders that look like LibTorch and checks which of them the build accepts:
#   cmake -DSOURCE=... -DVERSIONS=2.11...<2.16 -DWORK=... -P libtorch_versions.cmake
cmake_minimum_required(VERSION 3.25)
set(CMAKE_FIND_LIBRARY_PREFIXES lib)
set(CMAKE_FIND_LIBRARY_SUFFIXES .so)
list(APPEND CMAKE_MODULE_PATH ${SOURCE}/cmake)

# Configuring stops if LibTorch is refused, so each try is a separate run of this file with TRY.
if(TRY)
  set(LibTorch_ROOT ${TRY})
  find_package(LibTorch ${VERSIONS} REQUIRED)
  return()
endif()

# expect(VERSION TEXT): the message of configuring with a LibTorch of this version.
function(expect version text)
  set(root ${WORK}/${version})
  string(REPLACE "." ";" parts ${version})
  list(GET parts 0 major)
  list(GET parts 1 minor)
  list(GET parts 2 patch)
  file(WRITE ${root}/include/ATen/ATen.h "")
  file(WRITE ${root}/include/torch/headeronly/version.h
    "#define TORCH_VERSION_MAJOR ${major}\n#define TORCH_VERSION_MINOR ${minor}\n#define TORCH_VERSION_PATCH ${patch}\n")
  file(WRITE ${root}/lib/libtorch_cpu.so "")
  file(WRITE ${root}/lib/libc10.so "")
  execute_process(
    COMMAND ${CMAKE_COMMAND} -DTRY=${root} -DSOURCE=${SOURCE} "-DVERSIONS=${VERSIONS}" -P ${CMAKE_CURRENT_FUNCTION_LIST_FILE}
    OUTPUT_VARIABLE said ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  string(FIND "${said}" "${text}" place)
  if(place EQUAL -1)
    message(SEND_ERROR "LibTorch ${version}: expected \"${text}\", found: ${said}")
  endif()
endfunction()

foreach(version 2.11.0 2.15.0)
  expect(${version} "(found suitable version \"${version}\", required range is \"${VERSIONS}\")")
endforeach()
foreach(version 2.8.0 2.10.0 2.16.0)
  expect(${version} "Could NOT find LibTorch: Found unsuitable version \"${version}\", required range is \"${VERSIONS}\"")
endforeach()
