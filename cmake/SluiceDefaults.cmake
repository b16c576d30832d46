# Compiler settings, output folders and the two helper functions that every part uses.
include_guard()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

# Line tables alone, where no other flags were chosen: a fourth of the compile time of files with gRPC's headers goes to the types of -g.
# A debugger shows variables in a build with -DCMAKE_BUILD_TYPE=Debug.
foreach(language C CXX)
  if(CMAKE_${language}_FLAGS_RELWITHDEBINFO STREQUAL "-O2 -g -DNDEBUG")
    set(CMAKE_${language}_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
  endif()
endforeach()
# For folders of tests whose time is not spent in their own code: compiled in four tenths of the time.
macro(sluice_quick_compile)
  if(NOT SLUICE_SANITIZE)
    add_compile_options(-O0)
  endif()
endmacro()

# Everything that runs lands in build/bin and build/lib; programs find build/lib by RPATH, so the pair can be copied.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/archive)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
set(CMAKE_BUILD_RPATH "$ORIGIN/../lib")

find_program(SLUICE_CCACHE ccache)
if(SLUICE_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${SLUICE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SLUICE_CCACHE})
endif()

set(SLUICE_SANITIZE "" CACHE STRING "address, undefined or thread: build with that sanitizer")
if(SLUICE_SANITIZE)
  add_compile_options(-fsanitize=${SLUICE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  # GCC's flow analysis does not follow instrumented code (GCC bug 105562: members of std::regex; here also of std::optional).
  # Builds without a sanitizer have the warning.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  if(SLUICE_SANITIZE MATCHES "undefined")
    # It looks into memory through a pipe of its own, and takes every object for a wrong one where a test has used up the descriptors.
    add_compile_options(-fno-sanitize=vptr)
    # Programs pass any number for an enumeration of the driver's; without -fstrict-enums a compiler relies on none.
    add_compile_options(-fno-sanitize=enum)
  endif()
  add_link_options(-fsanitize=${SLUICE_SANITIZE})
endif()

add_compile_options(-Wall -Wextra -Werror -Wno-missing-field-initializers)
# GCC 12's <algorithm> calls a function of its own that it has deprecated (std::stable_sort). Clang says so at each use.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-deprecated-declarations>)
# Paths relative to the source: reproducible objects, and ccache hits across clones.
add_compile_options(-ffile-prefix-map=${CMAKE_SOURCE_DIR}=.)

# Tests' time limits are for a build without a sanitizer and without qemu, times this factor. sluice_timeout(TEST SECONDS) sets one.
set(SLUICE_TIME_FACTOR 1)
if(SLUICE_SANITIZE OR CMAKE_CROSSCOMPILING)
  set(SLUICE_TIME_FACTOR 5)
endif()
function(sluice_timeout test seconds)
  math(EXPR seconds "${seconds} * ${SLUICE_TIME_FACTOR}")
  set_tests_properties(${test} PROPERTIES TIMEOUT ${seconds})
endfunction()

# sluice_test(NAME SOURCES ... LIBS ... [LABELS ...] [TIMEOUT s]): a Catch2 v3 program, each case a ctest test.
function(sluice_test name)
  cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  find_package(Catch2 3 REQUIRED)
  include(${Catch2_DIR}/Catch.cmake)  # by path: its package adds the folder to the module path only the first time
  add_executable(${name} ${T_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
  target_link_libraries(${name} PRIVATE ${T_LIBS} Catch2::Catch2WithMain)
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  math(EXPR T_TIMEOUT "${T_TIMEOUT} * ${SLUICE_TIME_FACTOR}")
  set(labels)  # an empty value would be dropped on the way, and SKIP_RETURN_CODE become the label
  if(T_LABELS)
    set(labels LABELS "${T_LABELS}")
  endif()
  catch_discover_tests(${name} TEST_PREFIX "${name}: " DISCOVERY_MODE PRE_TEST
    PROPERTIES ${labels} TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 4)
endfunction()

# sluice_grpc(TARGET FILE...): a static library of the messages and gRPC stubs of the .proto files, which may import one
# another by name (paths relative to the current folder, or absolute; included as "<name>.pb.h").
#
# protobuf's map_field.h adds two members under ThreadSanitizer, which Debian's library, built without it, does not have:
# each message with a map would be read at wrong offsets. So what includes these headers does not see GCC's macro. It is
# instrumented all the same, and keeps what libstdc++ derives from the macro.
function(sluice_grpc target)
  include(SluiceStaticGrpc)
  sluice_find_grpc()
  add_library(${target} STATIC ${ARGN})
  target_link_libraries(${target} PUBLIC gRPC::grpc++_unsecure protobuf::libprotobuf)
  target_include_directories(${target} SYSTEM PUBLIC ${CMAKE_CURRENT_BINARY_DIR})
  target_compile_options(${target} PRIVATE -w)
  if(SLUICE_SANITIZE MATCHES "thread")
    target_compile_options(${target} PUBLIC -U__SANITIZE_THREAD__ -D_GLIBCXX_TSAN=1)
  endif()
  set_target_properties(${target} PROPERTIES CXX_CLANG_TIDY "")
  protobuf_generate(TARGET ${target} APPEND_PATH LANGUAGE cpp)
  protobuf_generate(TARGET ${target} APPEND_PATH LANGUAGE grpc GENERATE_EXTENSIONS .grpc.pb.h .grpc.pb.cc
    PLUGIN "protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>")
endfunction()
