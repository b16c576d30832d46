# gRPC, Protobuf, abseil and yaml-cpp as archives, for every part: `sluice_find_grpc()` (called by sluice_grpc) finds the
# packages once and makes their targets global, each pointed at the .a that Debian ships beside the .so. Code keeps naming
# gRPC::grpc++_unsecure, protobuf::libprotobuf, absl::status and so on; mixing archives with the shared objects would give a
# process two copies of abseil. All our gRPC is on Unix sockets, so the variant without TLS is linked: 5 MB less of text.
# With ThreadSanitizer the shared objects are linked: test/tsan.supp names uninstrumented code by its file.
#
# sluice_carry(TARGET LIB...): copies shared objects that come without an archive (prometheus-cpp::core, ...) under their
# soname into build/lib, where TARGET finds them by its RPATH. sluice_carry_httplib(TARGET): the same for cpp-httplib.
include_guard()

# out: PATH's archive (".so[.N]" replaced by ".a"), empty where there is none.
function(_sluice_archive_of path out)
  string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive "${path}")
  if(NOT archive MATCHES "^/.*\\.a$" OR archive STREQUAL path OR NOT EXISTS "${archive}")
    set(archive "")
  endif()
  set(${out} "${archive}" PARENT_SCOPE)
endfunction()

function(_sluice_use_archive target)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    return()
  endif()
  foreach(property IMPORTED_LOCATION IMPORTED_LOCATION_NONE IMPORTED_LOCATION_RELEASE IMPORTED_LOCATION_NOCONFIG)
    get_target_property(location ${target} ${property})
    _sluice_archive_of("${location}" archive)
    if(archive)
      set_target_properties(${target} PROPERTIES ${property} "${archive}")
    endif()
  endforeach()
  # The link interface may name shared objects by path too (find modules do).
  get_target_property(links ${target} INTERFACE_LINK_LIBRARIES)
  if(links)
    set(new)
    foreach(link IN LISTS links)
      _sluice_archive_of("${link}" archive)
      if(archive)
        set(link "${archive}")
      endif()
      list(APPEND new "${link}")
    endforeach()
    set_target_properties(${target} PROPERTIES INTERFACE_LINK_LIBRARIES "${new}")
  endif()
endfunction()

macro(sluice_find_grpc)
  if(NOT TARGET gRPC::grpc++_unsecure)
    find_package(Threads REQUIRED)
    find_package(Protobuf REQUIRED)
    find_package(absl CONFIG REQUIRED)
    find_package(gRPC CONFIG REQUIRED)
    find_package(yaml-cpp CONFIG REQUIRED)
    get_property(_sluice_imported DIRECTORY PROPERTY IMPORTED_TARGETS)
    foreach(_target IN LISTS _sluice_imported)
      set_target_properties(${_target} PROPERTIES IMPORTED_GLOBAL TRUE)
      if(_target MATCHES "^(gRPC::(grpc|upb|gpr|address_sorting)|absl::|protobuf::libprotobuf|re2::|c-ares::|ZLIB::|yaml-cpp)"
         AND NOT _target MATCHES "plugin" AND NOT SLUICE_SANITIZE MATCHES "thread")
        _sluice_use_archive(${_target})
      endif()
    endforeach()
    unset(_sluice_imported)
  endif()
endmacro()

function(sluice_carry target)
  foreach(library IN LISTS ARGN)
    add_custom_command(TARGET ${target} POST_BUILD COMMAND ${CMAKE_COMMAND} -E copy_if_different
      "$<TARGET_FILE:${library}>" "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/$<TARGET_SONAME_FILE_NAME:${library}>")
  endforeach()
endfunction()

# cpp-httplib has no CMake target that names its file.
function(sluice_carry_httplib target)
  find_library(SLUICE_HTTPLIB cpp-httplib REQUIRED)
  file(REAL_PATH ${SLUICE_HTTPLIB} file)
  get_filename_component(name ${file} NAME)
  string(REGEX MATCH "^[^/]*\\.so\\.[0-9]+\\.[0-9]+" soname ${name})  # before version 1, a minor version has its own ABI
  add_custom_command(TARGET ${target} POST_BUILD COMMAND ${CMAKE_COMMAND} -E copy_if_different
    ${file} ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/${soname})
endfunction()
