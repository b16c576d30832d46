# What ships inside other people's containers is built by zig's clang against glibc 2.28 with libc++ linked statically: this
# machine's libstdc++.a itself needs GLIBC_2.35. zig caches objects by content, in the folder that all clones share.
include_guard()
if(DEFINED ENV{SLUICE_CACHE})
  set(SLUICE_CACHE_DIR $ENV{SLUICE_CACHE})
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(SLUICE_CACHE_DIR $ENV{XDG_CACHE_HOME}/sluice)
else()
  set(SLUICE_CACHE_DIR $ENV{HOME}/.cache/sluice)
endif()
find_program(SLUICE_ZIG zig HINTS $ENV{SLUICE_ZIG} ${SLUICE_CACHE_DIR}/python-build/bin)
if(NOT SLUICE_ZIG)
  message(FATAL_ERROR "zig was not found in $SLUICE_ZIG, ${SLUICE_CACHE_DIR}/python-build/bin or PATH; run scripts/setup build")
endif()
set(SLUICE_SHIP_GLIBC 2.28)
string(REGEX REPLACE "^arm64$" "aarch64" SLUICE_SHIP_ARCH "${CMAKE_SYSTEM_PROCESSOR}")
set(SLUICE_ZIG_RUN ${CMAKE_COMMAND} -E env ZIG_GLOBAL_CACHE_DIR=${SLUICE_CACHE_DIR}/zig ZIG_LOCAL_CACHE_DIR=${SLUICE_CACHE_DIR}/zig/local
  ${SLUICE_ZIG})

# sluice_ship(TARGET NAME file.so [ARCH arch] SOURCES ... INCLUDES dirs ... SYSTEM dirs ... FLAGS ... LINK ...
# LINK_DEPENDS files ...): a stripped shared object in build/lib with its debug information beside it (NAME.debug). Another architecture's lands in build/lib/<arch>.
function(sluice_ship target)
  cmake_parse_arguments(S "EXCLUDE_FROM_ALL" "NAME;ARCH" "SOURCES;INCLUDES;SYSTEM;FLAGS;LINK;LINK_DEPENDS" ${ARGN})
  if(NOT S_ARCH)
    set(S_ARCH ${SLUICE_SHIP_ARCH})
  endif()
  set(out ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
  if(NOT S_ARCH STREQUAL SLUICE_SHIP_ARCH)
    set(out ${out}/${S_ARCH})
  endif()
  set(common -target ${S_ARCH}-linux-gnu.${SLUICE_SHIP_GLIBC} -O2 -g -fPIC -fvisibility=hidden -ffunction-sections -fdata-sections
    -Wall -Wextra -Werror -Wno-missing-field-initializers -ffile-prefix-map=${CMAKE_SOURCE_DIR}=.)
  foreach(dir IN LISTS S_INCLUDES)
    list(APPEND common -I${dir})
  endforeach()
  foreach(dir IN LISTS S_SYSTEM)
    list(APPEND common -isystem ${dir})
  endforeach()
  set(objects)
  foreach(source IN LISTS S_SOURCES)
    get_filename_component(source ${source} ABSOLUTE)
    file(RELATIVE_PATH name ${CMAKE_CURRENT_SOURCE_DIR} ${source})
    string(REPLACE "../" "up/" name ${name})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/ship/${target}/${name}.o)
    get_filename_component(folder ${object} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    if(source MATCHES "\\.cc$")
      set(driver c++ -std=c++20 -fvisibility-inlines-hidden)
    else()
      set(driver cc)
    endif()
    add_custom_command(OUTPUT ${object}
      COMMAND ${SLUICE_ZIG_RUN} ${driver} ${common} ${S_FLAGS} -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d COMMENT "zig ${S_ARCH} ${name}" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  file(MAKE_DIRECTORY ${out})
  # Linked twice, because zig's objcopy strips no shared object. Written beside and renamed: a process that has the old file mapped
  # keeps it.
  set(link ${SLUICE_ZIG_RUN} c++ -target ${S_ARCH}-linux-gnu.${SLUICE_SHIP_GLIBC} -shared -Wl,-soname,${S_NAME} -Wl,--gc-sections -Wl,-z,defs
    ${S_LINK} ${objects})
  add_custom_command(OUTPUT ${out}/${S_NAME}
    COMMAND ${link} -g -o ${out}/${S_NAME}.debug
    COMMAND ${link} -s -o ${out}/${S_NAME}.new
    COMMAND ${CMAKE_COMMAND} -E rename ${out}/${S_NAME}.new ${out}/${S_NAME}
    DEPENDS ${objects} ${S_LINK_DEPENDS} COMMENT "zig ${S_ARCH} ${S_NAME}" VERBATIM)
  if(S_EXCLUDE_FROM_ALL)
    add_custom_target(${target} DEPENDS ${out}/${S_NAME})
  else()
    add_custom_target(${target} ALL DEPENDS ${out}/${S_NAME})
  endif()
  set_target_properties(${target} PROPERTIES SLUICE_FILE ${out}/${S_NAME})
endfunction()
