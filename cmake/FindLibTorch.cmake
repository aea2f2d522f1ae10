# LibTorch from the PyPI wheel of torch, without its TorchConfig.cmake, which requires CUDA and links all of it.
#
#   in:  LibTorch_ROOT         a folder .../site-packages/torch (cache or environment); default: that of SHARD_PYTHON
#   out: LibTorch::cpu         torch_cpu and c10
#        LibTorch::cuda        the same with torch_cuda, c10_cuda, cudart and NCCL; only with the toolkit
#        LibTorch_VERSION
if(NOT LibTorch_ROOT AND NOT DEFINED ENV{LibTorch_ROOT} AND SHARD_PYTHON AND EXISTS ${SHARD_PYTHON})
  execute_process(COMMAND ${SHARD_PYTHON} -c
    "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE LibTorch_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
set(_hints HINTS ${LibTorch_ROOT} $ENV{LibTorch_ROOT} NO_DEFAULT_PATH)
find_path(LibTorch_INCLUDE_DIR ATen/ATen.h ${_hints} PATH_SUFFIXES include)
find_library(LibTorch_CPU_LIBRARY torch_cpu ${_hints} PATH_SUFFIXES lib)
find_library(LibTorch_C10_LIBRARY c10 ${_hints} PATH_SUFFIXES lib)
if(LibTorch_INCLUDE_DIR AND EXISTS ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h)
  file(STRINGS ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" _numbers "${_lines}")
  list(JOIN _numbers "." LibTorch_VERSION)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR VERSION_VAR LibTorch_VERSION
  HANDLE_VERSION_RANGE)

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION ${LibTorch_C10_LIBRARY})
  add_library(LibTorch::cpu SHARED IMPORTED)
  set_target_properties(LibTorch::cpu PROPERTIES
    IMPORTED_LOCATION ${LibTorch_CPU_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_RPC;USE_TENSORPIPE"
    INTERFACE_LINK_LIBRARIES LibTorch::c10)
  find_package(CUDAToolkit QUIET)  # Does not enable the CUDA language.
  find_library(LibTorch_CUDA_LIBRARY torch_cuda ${_hints} PATH_SUFFIXES lib)
  find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda ${_hints} PATH_SUFFIXES lib)
  find_path(LibTorch_NCCL_INCLUDE_DIR nccl.h
    HINTS ${LibTorch_INCLUDE_DIR}/../../nvidia/nccl/include ${CUDAToolkit_INCLUDE_DIRS})
  find_library(LibTorch_NCCL_LIBRARY NAMES libnccl.so.2 nccl
    HINTS ${LibTorch_INCLUDE_DIR}/../../nvidia/nccl/lib ${CUDAToolkit_LIBRARY_DIR})
  if(CUDAToolkit_FOUND AND LibTorch_CUDA_LIBRARY AND LibTorch_C10_CUDA_LIBRARY AND LibTorch_NCCL_INCLUDE_DIR
     AND LibTorch_NCCL_LIBRARY)
    add_library(LibTorch::cuda INTERFACE IMPORTED)
    set_target_properties(LibTorch::cuda PROPERTIES
      INTERFACE_COMPILE_DEFINITIONS "USE_CUDA;USE_C10D_NCCL"
      INTERFACE_INCLUDE_DIRECTORIES "${CUDAToolkit_INCLUDE_DIRS};${LibTorch_NCCL_INCLUDE_DIR}"
      INTERFACE_LINK_LIBRARIES
      "LibTorch::cpu;${LibTorch_CUDA_LIBRARY};${LibTorch_C10_CUDA_LIBRARY};CUDA::cudart;${LibTorch_NCCL_LIBRARY}")
  endif()
endif()
