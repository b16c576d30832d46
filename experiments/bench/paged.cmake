# Inference servers with paged caches.
if(TARGET simgpu_cu AND TARGET sluice_player)
  add_executable(paged_bench ${CMAKE_CURRENT_LIST_DIR}/paged_bench.cc)
  target_include_directories(paged_bench PRIVATE ${CMAKE_SOURCE_DIR})
  set_target_properties(paged_bench PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
  target_link_libraries(paged_bench PRIVATE simgpu_cu sluice_player sluice::cuda_headers)
  target_link_options(paged_bench PRIVATE -Wl,--export-dynamic-symbol=nanosleep)
  if(TARGET sluice_engine)
    add_test(NAME "engine: untouched_caches_leave" COMMAND ${CMAKE_CURRENT_LIST_DIR}/paged_table.py --build ${CMAKE_BINARY_DIR} --check
      first-layers-graph first-block-graph first-layers-eager)
    set_tests_properties("engine: untouched_caches_leave" PROPERTIES TIMEOUT 400)
  endif()
endif()
