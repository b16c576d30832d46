# sluice_engine_in_program(TARGET): the engine becomes part of a test's program, and the driver's names jump into it
# (test/engine/in_process.cc). For sanitizers, whose runtime does not start behind a preload.
enable_language(ASM)

function(sluice_engine_in_program target)
  set(engine ${CMAKE_SOURCE_DIR}/test/engine)
  target_sources(${target} PRIVATE ${engine}/in_process.cc ${engine}/names.S $<TARGET_OBJECTS:sluice_policy>
    $<TARGET_OBJECTS:sluice_engine_objects> $<TARGET_OBJECTS:sluice_dispatch> ${CMAKE_SOURCE_DIR}/common/settings/settings.cc
    ${CMAKE_SOURCE_DIR}/common/settings/values.cc ${CMAKE_SOURCE_DIR}/trace/recorder.cc $<TARGET_OBJECTS:sluice_libraries>
    $<TARGET_OBJECTS:sluice_extents>)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/hooklib ${CMAKE_SOURCE_DIR}/trace ${CMAKE_SOURCE_DIR}/proto
    ${CMAKE_BINARY_DIR}/proto)
  target_link_libraries(${target} PRIVATE sluice::names sluice_hook_client)
  target_link_options(${target} PRIVATE -rdynamic)
endfunction()
