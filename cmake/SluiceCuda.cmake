# sluice::cuda_headers: cuda.h, cudaTypedefs.h, nvml.h, cudnn.h as system headers. From an installed toolkit, else from the
# wheels that scripts/setup keeps in the cache folder.
include_guard(GLOBAL)
if(DEFINED ENV{SLUICE_CACHE})
  set(_cache $ENV{SLUICE_CACHE})
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(_cache $ENV{XDG_CACHE_HOME}/sluice)
else()
  set(_cache $ENV{HOME}/.cache/sluice)
endif()
find_path(SLUICE_CUDA_INCLUDE cuda.h
  HINTS $ENV{CUDA_HOME}/include ${_cache}/cuda/nvidia/cu13/include PATHS /usr/local/cuda/include NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
find_path(SLUICE_CUDNN_INCLUDE cudnn.h
  HINTS $ENV{CUDA_HOME}/include ${_cache}/cuda/nvidia/cudnn_jit/include PATHS /usr/local/cuda/include /usr/include NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
if(NOT SLUICE_CUDA_INCLUDE)
  message(FATAL_ERROR "cuda.h was not found in $CUDA_HOME, /usr/local/cuda or ${_cache}/cuda; run scripts/setup build")
endif()
add_library(sluice_cuda_headers INTERFACE)
add_library(sluice::cuda_headers ALIAS sluice_cuda_headers)
target_include_directories(sluice_cuda_headers SYSTEM INTERFACE ${SLUICE_CUDA_INCLUDE} ${SLUICE_CUDNN_INCLUDE})
